"""The address spaces of traced processes: the owners of mappings, from the kernel's reports of changes."""
