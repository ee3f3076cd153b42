"""The daemon: its start and stop, its parts, and its answers."""
