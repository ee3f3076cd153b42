"""Call sites and their stacks in the kernel's tables: reads them, and removes them to make room."""
