"""Tests of `bpfleakd.elf`; no privileges needed, but gcc and binutils."""
