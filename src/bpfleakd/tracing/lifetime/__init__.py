"""The life of a traced process: its creation, its turns in every tick, and its last report."""
