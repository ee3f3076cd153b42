"""Tests of `bpfleakd.symbols`; no privileges needed, but gcc and binutils."""
