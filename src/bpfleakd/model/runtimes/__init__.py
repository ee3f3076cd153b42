"""What the runtimes of managed programs tell of their heaps."""
