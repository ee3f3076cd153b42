"""bpfleakd: a live memory-leak monitor for running Linux programs, built on eBPF."""

__version__ = "0.3.0"
