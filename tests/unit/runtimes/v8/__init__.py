"""Tests of `bpfleakd.runtimes.v8`; no privileges needed."""
