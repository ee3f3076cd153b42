"""The capacity of the kernel's tables: how full they are, and how room is made."""
