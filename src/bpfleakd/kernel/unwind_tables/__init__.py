"""Unwind tables in the kernel, where the walker searches them."""
