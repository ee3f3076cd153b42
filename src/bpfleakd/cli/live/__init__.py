"""`bpfleakctl top` on a terminal: turns keys and the daemon's answers into a screen."""
