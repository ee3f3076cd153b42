"""Tests of `bpfleakd.analysis`; nothing needed."""
