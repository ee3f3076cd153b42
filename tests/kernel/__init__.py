"""Tests that load BPF and trace real programs. They need root; conftest.py has the fixtures."""
