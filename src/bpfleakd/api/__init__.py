"""The daemon's API, over its unix socket and (read-only) over TCP."""
