"""The address spaces of traced processes: who mapped what, from the kernel's reports of every change."""
