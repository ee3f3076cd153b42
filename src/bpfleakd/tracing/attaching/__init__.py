"""From a pid to probes in that process, and back: chooses, links, pins and adopts them."""
