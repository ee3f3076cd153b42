"""The daemon: its life, what it is assembled from, and what it answers."""
