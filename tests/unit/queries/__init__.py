"""Tests of `bpfleakd.queries`; no privileges needed."""
