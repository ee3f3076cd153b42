"""Tests of what differs between kernels: `make test-vm` runs them in qemu."""
