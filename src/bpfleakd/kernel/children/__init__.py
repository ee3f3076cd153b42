"""Child processes for work whose libraries would stay in the memory of the daemon."""
