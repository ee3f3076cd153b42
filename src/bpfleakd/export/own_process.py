"""The daemon's own process, in the metrics that every Prometheus client has for it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from bpfleakd.export.families import CounterFamily, Family, GaugeFamily

__all__ = ["own_process_families"]

_SELF = Path("/proc/self")
# Fields of /proc/PID/stat after the command's name, from 0 (proc_pid_stat(5) counts from 3).
_STARTTIME, _VSIZE, _RSS = 19, 20, 21


def own_process_families() -> Iterator[Family]:
    """Processor time, memory, start and descriptors, as of now."""
    fields = (_SELF / "stat").read_text(errors="replace").rpartition(")")[2].split()
    started_s = int(fields[_STARTTIME]) / os.sysconf("SC_CLK_TCK")
    ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield CounterFamily(
        "process_cpu_seconds",
        "Total user and system CPU time spent in seconds.",
        usage.ru_utime + usage.ru_stime,
        unit="seconds",
    )
    yield GaugeFamily("process_virtual_memory_bytes", "Virtual memory size in bytes.", int(fields[_VSIZE]))
    yield GaugeFamily(
        "process_resident_memory_bytes",
        "Resident memory size in bytes.",
        int(fields[_RSS]) * resource.getpagesize(),
    )
    yield GaugeFamily(
        "process_start_time_seconds",
        "Start time of the process since unix epoch in seconds.",
        time.time() - ago_s,
    )
    yield GaugeFamily("process_open_fds", "Number of open file descriptors.", len(os.listdir(_SELF / "fd")))
    yield GaugeFamily(
        "process_max_fds",
        "Maximum number of open file descriptors.",
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
