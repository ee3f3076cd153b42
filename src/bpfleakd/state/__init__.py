"""What the daemon remembers beyond its own end and the machine's: reports, in SQLite."""
