"""Tests of `bpfleakd.runtimes`; no privileges needed."""
