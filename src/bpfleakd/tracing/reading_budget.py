"""Limits the tracing loop's time per process, for changes of its address space for example.

Rules:
  - In one reading a process has `most_ns`, and `fair_ns` even if all have used up `total_ns` together: no
    process suffers from others.
  - Changes beyond that are skipped and counted, and the map is repaired later.
  - After a job on one process that took a while there is a pause of some times as long.
"""

from __future__ import annotations

from collections import Counter

TOTAL_NS = 300_000_000
MOST_NS = 200_000_000
FAIR_NS = 20_000_000


class ReadingBudget:
    """The time that processes have used in the current reading."""

    def __init__(self, *, total_ns: int = TOTAL_NS, most_ns: int = MOST_NS, fair_ns: int = FAIR_NS) -> None:
        self._limits_ns = total_ns, most_ns, fair_ns
        self._used_ns: Counter[int] = Counter()
        self._total_ns = 0

    def begin(self) -> None:
        """Start a reading."""
        self._used_ns.clear()
        self._total_ns = 0

    def charge(self, pid: int, took_ns: int) -> None:
        """Charge the time of a change to a process."""
        self._used_ns[pid] += took_ns
        self._total_ns += took_ns

    def is_over(self, pid: int) -> bool:
        """Whether a process has used up its budget."""
        return self.left_ns(pid) < 0

    def left_ns(self, pid: int) -> int:
        """The remaining time of a process; negative if it is overdrawn."""
        total_ns, most_ns, fair_ns = self._limits_ns
        return (fair_ns if self._total_ns > total_ns else most_ns) - self._used_ns[pid]


class Pause:
    """Decides when a job on a process may be repeated, to take only a small share of the time. In ns.

    The pause after a job is `factor` times as long as the job. It was last done at `done_ns`.
    """

    def __init__(self, factor: int) -> None:
        self._factor = factor
        self._due_ns = 0
        self.done_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether the job may be repeated."""
        return now_ns >= self._due_ns

    def done(self, began_ns: int, ended_ns: int, at_least_ns: int = 0) -> None:
        """Record that the job was done, in that time."""
        self.used(ended_ns, ended_ns - began_ns, at_least_ns)

    def used(self, now_ns: int, used_ns: int, at_least_ns: int = 0) -> None:
        """It was done and took so much processor time; the pause is `at_least_ns` long."""
        self.done_ns = now_ns
        self._due_ns = now_ns + max(self._factor * used_ns, at_least_ns)
