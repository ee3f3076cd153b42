"""Verdicts on call sites, managed heaps and processes, computed from their histories. No I/O."""
