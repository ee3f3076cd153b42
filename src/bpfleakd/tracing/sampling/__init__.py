"""How many blocks of a process are recorded: by the daemon, and by a sampler inside it."""
