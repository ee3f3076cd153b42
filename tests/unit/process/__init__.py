"""Tests of `bpfleakd.process`, on a /proc of files and on processes of our own; no privileges needed."""
