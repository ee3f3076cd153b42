"""The helpers of all tests in one process: they take a moment to start."""

from __future__ import annotations

import atexit
from functools import cache

from bpfleakd.kernel.probes import points
from bpfleakd.runtimes.dotnet import line_jobs, stream_jobs
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.symbols import naming_jobs
from bpfleakd.unwind import table_builder


@cache
def helpers() -> Helpers:
    """Helpers for all that the daemon has them for."""
    jobs = (naming_jobs, points, table_builder, stream_jobs, line_jobs)
    made = Helpers([module.__name__ for module in jobs])
    atexit.register(made.close)
    return made
