"""Tests of `bpfleakd.runtimes.jvm`; no privileges needed."""
