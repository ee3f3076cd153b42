"""Tests of `bpfleakd.kernel` without a kernel; no privileges needed, but gcc and binutils."""
