"""What only other kernels show: `make test-vm` runs it in qemu."""
