"""The helpers of all tests in one process: they take a moment to start."""

from __future__ import annotations

import atexit
from functools import cache

from bpfleakd.kernel.probes import points
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.symbols import naming_jobs
from bpfleakd.unwind import table_builder

__all__ = ["helpers"]


@cache
def helpers() -> Helpers:
    """Helpers for all that the daemon has them for."""
    made = Helpers([naming_jobs.__name__, points.__name__, table_builder.__name__])
    atexit.register(made.close)
    return made
