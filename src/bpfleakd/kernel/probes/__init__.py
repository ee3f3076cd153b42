"""Probes: where they are placed in a function, how they are attached and shared, and what they cost."""
