"""The room in the kernel's tables: how much is taken, and how more is made."""
