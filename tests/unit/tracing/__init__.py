"""Tests of `bpfleakd.tracing` over a kernel that is made up; no privileges needed, but gcc."""
