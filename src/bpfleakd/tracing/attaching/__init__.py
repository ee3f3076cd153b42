"""From a pid to probes in that process, and back: what is probed, linked, pinned and adopted."""
