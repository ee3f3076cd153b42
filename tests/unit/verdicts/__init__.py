"""Tests of `bpfleakd.verdicts`; nothing needed."""
