"""What the announcements of a sampler inside a process cost it, and how coarse it should be therefore.

An announcement takes a microsecond in a loop, but 25 in a program that fills the processor's caches, or that
seldom runs: 17 of them in the programs, whose code and tables are no longer in the caches. The rest is the
trap, and the program's own code and data, which are not there afterwards. So announcements may take only a
small share of a process' own time. If they take more, its interval is doubled, several times if need be
(inside/probes.h). A block in a second or two costs next to nothing: then the interval stays, however little
the process does.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.process.process import process_cpu_ns

DOUBLINGS_MAX = 4
_NS_PER_S = 1_000_000_000
_WINDOW_NS = 20 * _NS_PER_S
_ANNOUNCEMENT_NS = 25_000
_SHARE_MAX = 0.005
# So many are enough to see earlier that it is too much: a busy program need not pay for 20 s first.
_EARLY_NS = 2 * _NS_PER_S
_EARLY_COUNT = 400
# At least so many remain: a block in two seconds, and its end.
_PER_S_MIN = 1.0
# The interval is halved again if the cost would then be this part of the limit: it varies.
_SPARE = 0.6


class _Reading(Struct, frozen=True):
    read_ns: int
    announcements: int
    cpu_ns: int

    def says_something(self, announcements: int, now_ns: int) -> bool:
        """Whether enough was announced since, or it was long ago."""
        elapsed_ns, count = now_ns - self.read_ns, announcements - self.announcements
        return elapsed_ns >= _WINDOW_NS or (elapsed_ns >= _EARLY_NS and count >= _EARLY_COUNT)


class InsideCosts:
    """The announcements of each process, by pid. `cpu_ns` returns a process' processor time."""

    def __init__(self, cpu_ns: Callable[[int], int] = process_cpu_ns) -> None:
        self._cpu_ns = cpu_ns
        self._last: dict[int, _Reading] = {}

    def wanted_doublings(self, pid: int, current: int, counters: ProcessCounters, now_ns: int) -> int:
        """How often its interval should be doubled, which is `current` until enough was seen.

        To be called at each reading of its counters.
        """
        last, announcements = self._last.get(pid), counters.recorded + counters.released
        if last and not last.says_something(announcements, now_ns):
            return current
        try:
            reading = _Reading(now_ns, announcements, self._cpu_ns(pid))
        except OSError:
            # It has just ended.
            return current
        if not last:
            self._last[pid] = reading
            return current
        count, elapsed_ns = announcements - last.announcements, now_ns - last.read_ns
        share = count * _ANNOUNCEMENT_NS / max(reading.cpu_ns - last.cpu_ns, 1)
        wanted = _wanted(current, count * _NS_PER_S / elapsed_ns, share)
        if elapsed_ns < _WINDOW_NS and wanted <= current:
            return current
        self._last[pid] = reading
        return wanted

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced."""
        self._last.pop(pid, None)


def _wanted(current: int, per_s: float, share: float) -> int:
    """`per_s` announcements take this `share` of the processor time at the `current` doublings."""
    wanted = current
    while wanted < DOUBLINGS_MAX and share > _SHARE_MAX and per_s > 2 * _PER_S_MIN:
        wanted, share, per_s = wanted + 1, share / 2, per_s / 2
    while wanted > 0 and (2 * share < _SPARE * _SHARE_MAX or 2 * per_s < _SPARE * 2 * _PER_S_MIN):
        wanted, share, per_s = wanted - 1, 2 * share, 2 * per_s
    return wanted
