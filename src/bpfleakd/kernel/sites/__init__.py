"""Call sites and their stacks in the kernel's tables: they are read, and removed to make room."""
