"""Tests of `bpfleakd.target`, on a /proc of files and on processes of our own; no privileges needed."""
