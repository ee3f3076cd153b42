"""A process according to /proc: identity, mappings, memory, allocators."""
