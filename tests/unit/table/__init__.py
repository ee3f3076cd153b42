"""Tests of `bpfleakd.table`; nothing needed."""
