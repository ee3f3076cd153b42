"""How answers look. What is shown was computed elsewhere; every name passes through `printable`."""
