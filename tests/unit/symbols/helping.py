"""The helpers of all tests in one process: they take a moment to start."""

from __future__ import annotations

import atexit
from functools import cache

from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.symbols import naming_jobs

__all__ = ["helpers"]


@cache
def helpers() -> Helpers:
    """Helpers for names."""
    made = Helpers([naming_jobs.__name__])
    atexit.register(made.close)
    return made
