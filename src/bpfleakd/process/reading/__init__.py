"""Reading what a traced process can keep a reader waiting for: its memory, and what stands in it."""
