"""A process as /proc shows it: identity, mappings, memory, allocators."""
