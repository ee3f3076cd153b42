"""`bpfleakctl top` on a terminal: keys go in, answers of the daemon too, and a screen comes out."""
