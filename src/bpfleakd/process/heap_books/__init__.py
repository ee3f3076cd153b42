"""What allocators themselves have written down of their heaps, read from outside."""
