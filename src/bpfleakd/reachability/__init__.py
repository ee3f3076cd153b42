"""Finds the lost blocks of a process in a copy of its memory. No I/O."""
