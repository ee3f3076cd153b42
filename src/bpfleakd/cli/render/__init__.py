"""The layout of answers. The content was computed elsewhere; every name passes through `printable`."""
