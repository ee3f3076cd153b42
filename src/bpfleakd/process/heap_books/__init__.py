"""Allocators' own data on their heaps, read from outside."""
