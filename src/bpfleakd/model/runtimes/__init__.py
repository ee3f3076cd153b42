"""Figures that the runtimes of managed programs report on their heaps."""
