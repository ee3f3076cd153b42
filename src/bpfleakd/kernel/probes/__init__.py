"""Probes: where they go in a function, how they are attached, shared and priced."""
