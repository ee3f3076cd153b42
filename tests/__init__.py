"""Tests: without privileges (unit), with BPF (kernel), under a real systemd (system)."""
