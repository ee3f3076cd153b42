"""Tests of `bpfleakd.daemon`; no privileges needed."""
