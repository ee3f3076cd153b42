"""File descriptors and threads of a traced process, and whether their number keeps growing.

Rules:
  - Each kind is a row of a table like that of call sites, in which each of them counts as so many bytes. So
    their growth is judged as a leak of memory is.
  - They are counted every 2 s, and judged while there are more than at first. Their details are read beside
    the tracing loop, in a small share of the time, and only while they grow.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from bpfleakd.model.process import ProcessId
from bpfleakd.model.resources import ResourceKind, ResourceShare, ResourceUse
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict, Verdict
from bpfleakd.process.descriptors import count_descriptors, descriptor_limit, uses_of
from bpfleakd.process.process import thread_commands
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.descriptor_sites import DESCRIPTOR_BYTES, shares_of
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts
from bpfleakd.tracing.reading_budget import Pause
from bpfleakd.verdicts.measurement import LEAK_AFTER_S

PROC = Path("/proc")
_NS_PER_S = 1_000_000_000
_PAUSE_NS = 2 * _NS_PER_S
# The approximate kernel memory of each; a thread has a kernel stack.
_BYTES = {ResourceKind.DESCRIPTORS: DESCRIPTOR_BYTES, ResourceKind.THREADS: 32_768}
_WORDS = {ResourceKind.DESCRIPTORS: "file descriptors", ResourceKind.THREADS: "threads"}
_KINDS = tuple(ResourceKind)
# A smaller increase is not worth a report, however steady.
_GROWN_MIN = 10
_SAMPLE_MAX = 200
_PAUSE_FACTOR = 200


class ResourceWatch:
    """The descriptors and threads of one process since `began_ns` (CLOCK_MONOTONIC)."""

    def __init__(
        self,
        process: ProcessId,
        began_ns: int,
        leak_after_s: float = LEAK_AFTER_S,
        proc: Path = PROC,
    ) -> None:
        self._process = process
        self._proc = proc
        self._table = SiteTable(began_ns)
        self._verdicts = SiteVerdicts(leak_after_s)
        self._pause = Pause(_PAUSE_FACTOR)
        self._shares_pause = Pause(_PAUSE_FACTOR)
        self._due_ns = 0
        self._counts: dict[ResourceKind, int] = {}
        self._first: dict[ResourceKind, int] = {}
        self._risen: Counter[ResourceKind] = Counter()
        self._shares: dict[ResourceKind, tuple[ResourceShare, ...]] = {}
        self._limit: int | None = None
        self._announced: set[ResourceKind] = set()
        self._opened_at = ""

    def count(self, kind: ResourceKind) -> int | None:
        """Their number at the last look; None before the first."""
        return self._counts.get(kind)

    @property
    def descriptors_grow(self) -> bool:
        """Whether they grow persistently, or may do so."""
        return ResourceKind.DESCRIPTORS in self._counts and self._grows(ResourceKind.DESCRIPTORS)

    def note_opened_at(self, words: str) -> None:
        """Set where most of the new descriptors are opened; "" for unknown."""
        self._opened_at = words

    @property
    def leaks(self) -> tuple[ResourceUse, ...]:
        """The resources whose number keeps growing."""
        return tuple(use for use in self.uses() if use.verdict is Verdict.LEAK)

    def new_leaks(self) -> list[ResourceUse]:
        """Leaks that were not returned before."""
        new = [leak for leak in self.leaks if leak.kind not in self._announced]
        self._announced |= {leak.kind for leak in new}
        return new

    def read(self, clock_ns: Callable[[], int], background: Background) -> None:
        """Count them if it is due. `clock_ns` is CLOCK_MONOTONIC."""
        now_ns = clock_ns()
        if now_ns < self._due_ns or not self._pause.is_due(now_ns):
            return
        descriptors, threads = count_descriptors(self._process.pid, self._proc), self._count_threads()
        if descriptors is None or threads is None:
            return
        self._take(now_ns, {ResourceKind.DESCRIPTORS: descriptors, ResourceKind.THREADS: threads})
        if any(map(self._is_more, _KINDS)):
            self._verdicts.compute(self._table, (), clock_ns)
        self._due_ns = now_ns + _PAUSE_NS
        self._pause.done(now_ns, clock_ns())
        if any(map(self._grows, _KINDS)) and self._shares_pause.is_due(now_ns):
            background.begin(str(self._process), partial(self._look_closer, clock_ns))

    def uses(self) -> tuple[ResourceUse, ...]:
        """Each kind, once counted."""
        return tuple(self._use(kind) for kind in _KINDS if kind in self._counts)

    def added_to(self, verdict: ProcessVerdict) -> ProcessVerdict:
        """The verdict on the process, which leaks if these do."""
        leaks = self.leaks
        if not leaks:
            return verdict
        reason = "; ".join((verdict.reason, *(leak.reason for leak in leaks)))
        return replace(verdict, verdict=Verdict.LEAK, reason=reason)

    def _take(self, now_ns: int, counts: dict[ResourceKind, int]) -> None:
        is_first = not self._counts
        for kind, count in counts.items():
            self._risen[kind] += max(0, count - self._counts.get(kind, 0))
        self._counts = counts
        if is_first:
            self._first = counts
        keys = [_key(kind) for kind in _KINDS]
        rows = np.array([self._counters(kind) for kind in _KINDS], np.int64).reshape(-1, len(COUNTERS))
        if is_first:
            self._table.begin_with(keys, rows)
        self._table.update(now_ns, keys, rows)

    def _counters(self, kind: ResourceKind) -> tuple[int, ...]:
        each, count, risen = _BYTES[kind], self._counts[kind], self._risen[kind]
        return each * count, count, each * risen, risen, 0, each * count, 0, 0

    def _verdict_on(self, kind: ResourceKind) -> SiteVerdict:
        return self._verdicts.of(_KINDS.index(kind), self._counts[kind], self._risen[kind])

    def _is_more(self, kind: ResourceKind) -> bool:
        return self._counts[kind] - self._first[kind] >= _GROWN_MIN

    def _grows(self, kind: ResourceKind) -> bool:
        return self._is_more(kind) and self._verdict_on(kind).verdict in (Verdict.LEAK, Verdict.GROWING)

    def _use(self, kind: ResourceKind) -> ResourceUse:
        judged, count = self._verdict_on(kind), self._counts[kind]
        verdict = judged.verdict
        if verdict in (Verdict.LEAK, Verdict.GROWING) and not self._grows(kind):
            verdict = Verdict.STEADY
        grows = verdict in (Verdict.LEAK, Verdict.GROWING)
        rate = round(judged.leak_bytes_per_s / _BYTES[kind] * 60, 1) if grows else 0.0
        limit = self._limit if kind is ResourceKind.DESCRIPTORS else None
        shares = self._shares.get(kind, ()) if grows else ()
        reason = f"{_WORDS[kind]} grow: {rate:,.0f}/min" if grows else f"{_WORDS[kind]} do not grow"
        if shares:
            reason += f", {shares[0].share:.0%} {shares[0].what}"
        if grows and kind is ResourceKind.DESCRIPTORS and self._opened_at:
            reason += f", {self._opened_at}"
        if grows and limit is not None:
            reason += f" ({count:,} of at most {limit:,})"
        return ResourceUse(kind, count, limit, rate, verdict, judged.confidence, reason, shares)

    def _look_closer(self, clock_ns: Callable[[], int]) -> None:
        before_ns = time.thread_time_ns()
        pid = self._process.pid
        try:
            self._limit = descriptor_limit(pid, self._proc)
            first = self._first[ResourceKind.DESCRIPTORS]
            uses = uses_of(pid, first, _SAMPLE_MAX, self._proc)
            names = Counter(map(_name, thread_commands(pid, self._proc).values()))
            self._shares = {ResourceKind.DESCRIPTORS: shares_of(uses), ResourceKind.THREADS: shares_of(names)}
        except OSError:
            return  # it has just ended
        finally:
            self._shares_pause.used(clock_ns(), time.thread_time_ns() - before_ns)

    def _count_threads(self) -> int | None:
        """The number of threads; None if the pid belongs to another process."""
        try:
            stat = (self._proc / str(self._process.pid) / "stat").read_bytes()
            fields = stat[stat.rindex(b")") + 2 :].split()
            return int(fields[17]) if int(fields[19]) == self._process.start_ticks else None
        except (OSError, ValueError, IndexError):
            return None


def _key(kind: ResourceKind) -> SiteKey:
    """A table of one process; the kind only says that there are no blocks with ages."""
    return SiteKey(AllocationKind.GO_HEAP, _KINDS.index(kind) + 1)


def _name(command: str) -> str:
    """The name of a group of threads: those of a pool have numbers in their names."""
    return f"named {re.sub(r'[0-9]+', 'N', command)}"
