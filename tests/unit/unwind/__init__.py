"""Tests of `bpfleakd.unwind`; no privileges needed, but binutils, gcc and gdb."""
