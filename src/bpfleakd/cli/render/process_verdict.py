"""The lines under the header of a process: whether it leaks, and when a limit is reached."""

from __future__ import annotations

from bpfleakd.model.limit import MemoryLimitKind
from bpfleakd.model.verdict import ProcessVerdict
from bpfleakd.printable import printable
from bpfleakd.units import human_bytes, human_duration

__all__ = ["verdict_lines"]

_LIMITS = {
    MemoryLimitKind.CGROUP: "its control group",
    MemoryLimitKind.ADDRESS_SPACE: "RLIMIT_AS",
    MemoryLimitKind.DATA: "RLIMIT_DATA",
    MemoryLimitKind.HOST: "the machine",
}


def verdict_lines(verdict: ProcessVerdict) -> list[str]:
    """Return one line, or two if a limit is in sight."""
    lines = [printable(verdict.reason)]
    if verdict.limit and verdict.limit_reached_s is not None:
        limit = f"the {human_bytes(verdict.limit.limit_bytes)} of {_LIMITS[verdict.limit.kind]}"
        lines.append(f"at this rate {limit} are used up in {human_duration(verdict.limit_reached_s)}")
    return lines
