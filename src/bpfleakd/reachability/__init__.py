"""Which outstanding blocks of a process are lost, from a copy of its memory. Pure, except for numpy."""
