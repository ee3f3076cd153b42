"""Tests of `bpfleakd.runtimes.dotnet`; no privileges needed."""
