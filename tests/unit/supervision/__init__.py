"""Tests of `bpfleakd.supervision`; no privileges needed."""
