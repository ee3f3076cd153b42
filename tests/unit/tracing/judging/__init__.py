"""Tests of `bpfleakd.tracing.judging`; nothing needed."""
