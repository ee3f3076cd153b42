"""Tests of `bpfleakd.runtimes.cpython`, on the interpreter that runs them; no privileges needed."""
