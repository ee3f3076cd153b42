"""Tests of `bpfleakd.monitor` over a kernel that is made up; no privileges needed, but gcc."""
