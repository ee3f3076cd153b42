"""The daemon's API: what it answers, over its unix socket and (reading only) over TCP."""
