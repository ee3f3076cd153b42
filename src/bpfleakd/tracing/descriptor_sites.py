"""The open descriptors of a traced process by the call site that opened them, while they are recorded.

Rules:
  - The programs record which stack opened each descriptor. They do not see all ways to close one, so a
    descriptor counts only if /proc/PID/fd has it, too. Nor do they see all ways to get one: the others are
    counted (unrecorded_descriptors.py), and judged as a call site is.
  - Both are read beside the tracing loop, in a small share of the time; more rarely, what descriptors are.
  - Call sites are judged as those of memory are, with so many bytes for each descriptor. That is done in the
    tracing loop, so there is a pause after it, too: a process may have as many call sites as it likes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.kernel.descriptor_tables import DescriptorTable, DescriptorTables
from bpfleakd.model.process import ProcessId
from bpfleakd.model.resources import DescriptorTotals, ResourceShare
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.process.descriptors import open_numbers, uses_of_numbers
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts
from bpfleakd.tracing.reading_budget import Pause
from bpfleakd.tracing.unrecorded_descriptors import UnrecordedDescriptors
from bpfleakd.verdicts.measurement import LEAK_AFTER_S

PROC = Path("/proc")
_NS_PER_S = 1_000_000_000
_PAUSE_NS = _NS_PER_S
_PAUSE_FACTOR = 200
_TAKING_PAUSE_FACTOR = 50
# The approximate kernel memory of a descriptor: a file and its socket.
DESCRIPTOR_BYTES = 4_096
# The number of call sites whose descriptors' kinds are determined, and of how many descriptors each.
_SITES_LOOKED_AT = 5
_SAMPLE_MAX = 50
_SITES_MAX = 100
_SHARES_MAX = 5
_SHARE_MIN = 0.05
# Descriptors without a call site, as a row of the table. The kind only means that there are no blocks with
# ages.
_OTHERS = SiteKey(AllocationKind.GO_HEAP, 1)
_OTHERS_ID = -1
NOT_RECORDED = "by a way that is not recorded (SCM_RIGHTS, io_uring, pidfd_getfd, ioctl and others)"


class OpenDescriptors(Struct, frozen=True):
    """The open descriptors of one call site: their number, the number opened, and the verdict.

    `growth_per_min` is 0 unless they grow permanently; `shares` are their kinds, for the largest sites.
    """

    key: SiteKey
    open_count: int
    opened_count: int
    oldest_born_ns: int
    growth_per_min: float
    verdict: SiteVerdict
    shares: tuple[ResourceShare, ...]


class _Look(Struct, frozen=True):
    """The open descriptors at `at_ns`: LIVE_BLOCK records, and how many each stack had `opened` before.

    `earlier_count` and `other_count` are those that were not recorded.
    """

    at_ns: int
    blocks: NDArray[np.void]
    opened: dict[int, int]
    earlier_count: int
    other_count: int


class DescriptorSites:
    """The call sites of one process; empty before `begin`."""

    def __init__(self, process: ProcessId, leak_after_s: float = LEAK_AFTER_S, proc: Path = PROC) -> None:
        self._process = process
        self._leak_after_s = leak_after_s
        self._proc = proc
        self._opened: dict[int, int] = {}
        self._table: SiteTable | None = None
        self._verdicts = SiteVerdicts(leak_after_s)
        self._pause = Pause(_PAUSE_FACTOR)
        self._uses_pause = Pause(_PAUSE_FACTOR)
        self._taking_pause = Pause(_TAKING_PAUSE_FACTOR)
        self._uses: dict[int, Counter[str]] = {}
        self._unrecorded = UnrecordedDescriptors()
        self._others_risen = 0
        self._due_ns = 0
        self._lock = threading.Lock()
        self._look: _Look | None = None
        self._taken: _Look | None = None
        self._sites: tuple[OpenDescriptors, ...] = ()
        self._totals: DescriptorTotals | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether descriptors are recorded."""
        return self._table is not None

    def begin(self, now_ns: int, *, knows_past: bool = True) -> None:
        """Start the recording; without `knows_past`, an earlier daemon had started it."""
        self._table = SiteTable(now_ns, knows_past=knows_past)
        self._verdicts = SiteVerdicts(self._leak_after_s)
        self._forget()

    def end(self) -> None:
        """Stop the recording."""
        self._table = None
        self._forget()

    def note_opened(self, stack_ids: Sequence[int], opened: Sequence[int]) -> None:
        """Record how many descriptors each stack has opened, from the programs' counters."""
        self._opened.update(zip(stack_ids, opened, strict=True))

    def read(self, tables: DescriptorTables, clock_ns: Callable[[], int], background: Background) -> None:
        """Start a look at the open descriptors if it is due. `clock_ns` is CLOCK_MONOTONIC."""
        now_ns = clock_ns()
        if self._table is None:
            return
        if now_ns >= self._due_ns and self._pause.is_due(now_ns):
            table = tables.open(self._process.pid)
            if table is not None:
                look = partial(self._look_closer, table, self._unrecorded, dict(self._opened), clock_ns)
                if not background.begin(str(self._process), look):
                    table.close()
            self._due_ns = now_ns + _PAUSE_NS
        with self._lock:
            found = self._look
        began_ns = clock_ns()
        # A look from before the recording began belongs to an earlier recording.
        is_new = found is not None and found is not self._taken and found.at_ns >= self._table.updated_ns
        if found is not None and is_new and self._taking_pause.is_due(began_ns):
            self._take(self._table, found, clock_ns)
            self._sites = self._ranked(self._table, found)
            self._totals = self._summed(self._table, found)
            self._taking_pause.done(began_ns, clock_ns())

    def sites(self) -> tuple[OpenDescriptors, ...]:
        """Sites with open descriptors: the fastest growing first, then the largest; at most 100."""
        return self._sites

    @property
    def totals(self) -> DescriptorTotals | None:
        """All open descriptors at the same moment; None if they are not recorded, or not yet known."""
        return self._totals

    def _forget(self) -> None:
        with self._lock:
            self._look = None
        self._taken = None
        self._sites = ()
        self._totals = None
        self._unrecorded = UnrecordedDescriptors()
        self._others_risen = 0

    def _summed(self, table: SiteTable, look: _Look) -> DescriptorTotals:
        rate, shares = 0.0, shares_of(self._uses.get(_OTHERS_ID, Counter()))
        reason = ""
        if look.other_count:
            verdict = self._verdicts.of(table.row_of(_OTHERS), look.other_count, self._others_risen)
            rate = _rate_per_min(verdict)
            parts = [f"{look.other_count:,} came {NOT_RECORDED}"]
            parts += [f"+{rate:,.0f}/min"] * bool(rate)
            parts += [f"{share.share:.0%} {share.what}" for share in shares[:1]]
            reason = ", ".join(parts)
        recorded = len(look.blocks)
        every = recorded + look.earlier_count + look.other_count
        return DescriptorTotals(
            every, recorded, look.earlier_count, look.other_count, rate, reason, shares if reason else ()
        )

    def _ranked(self, table: SiteTable, look: _Look) -> tuple[OpenDescriptors, ...]:
        open_counts = table.columns()[:, COUNTERS.index("live_count")]
        keys = table.keys
        is_site = np.array([key.kind is AllocationKind.DESCRIPTOR for key in keys], bool)
        rows = np.flatnonzero((open_counts > 0) & is_site)
        attention, rates = self._verdicts.ranks(rows)
        rows = rows[np.lexsort((open_counts[rows], rates, attention > 0))[::-1][:_SITES_MAX]]
        oldest = _oldest(look.blocks)
        sites = (
            self._site(table, row, keys[row], oldest.get(keys[row].stack_id, 0)) for row in rows.tolist()
        )
        return tuple(sorted(sites, key=lambda site: (-site.growth_per_min, -site.open_count)))

    def _site(self, table: SiteTable, row: int, key: SiteKey, oldest_born_ns: int) -> OpenDescriptors:
        counters = table.counters(key)
        verdict = self._verdicts.of(row, counters.live_count, counters.allocated_count)
        return OpenDescriptors(
            key,
            counters.live_count,
            counters.allocated_count,
            oldest_born_ns,
            _rate_per_min(verdict),
            verdict,
            shares_of(self._uses.get(key.stack_id, Counter())),
        )

    def _take(self, table: SiteTable, look: _Look, clock_ns: Callable[[], int]) -> None:
        self._taken = look
        found, counts = np.unique(look.blocks["stack_id"], return_counts=True)
        open_counts = dict(zip(found.tolist(), counts.tolist(), strict=True))
        known = (key.stack_id for key in table.keys if key != _OTHERS)
        stack_ids = list(dict.fromkeys([*known, *open_counts]))
        rows = [_counters(open_counts.get(one, 0), look.opened.get(one, 0)) for one in stack_ids]
        self._others_risen += max(0, look.other_count - self._others_count(table))
        rows.append(_counters(look.other_count, self._others_risen))
        sites = [SiteKey(AllocationKind.DESCRIPTOR, stack_id) for stack_id in stack_ids]
        table.update(look.at_ns, [*sites, _OTHERS], np.array(rows, np.int64).reshape(-1, len(COUNTERS)))
        self._verdicts.compute(table, [look.blocks], clock_ns)

    def _others_count(self, table: SiteTable) -> int:
        """Their number at the last look."""
        return table.counters(_OTHERS).live_count if table.row_of(_OTHERS) >= 0 else 0

    def _look_closer(
        self,
        table: DescriptorTable,
        unrecorded: UnrecordedDescriptors,
        opened: dict[int, int],
        clock_ns: Callable[[], int],
    ) -> None:
        began_ns, used_ns = clock_ns(), time.thread_time_ns()
        try:
            # In this order: a descriptor that is in the table and not open was closed.
            numbers, blocks = table.read()
            open_now = np.array(open_numbers(self._process.pid, self._proc), np.uint64)
            # The table now includes descriptors that were opened in between.
            unrecorded.look(open_now, np.union1d(numbers, table.read()[0]))
            are_open = np.isin(numbers, open_now)
            gone = zip(numbers[~are_open].tolist(), blocks["born_ns"][~are_open].tolist(), strict=True)
            for number, born_ns in gone:
                table.forget(number, born_ns)
            numbers, blocks = numbers[are_open], blocks[are_open]
            blocks["size"] = blocks["weight"] = DESCRIPTOR_BYTES
            others = unrecorded.others
            look = _Look(began_ns, blocks, opened, unrecorded.earlier_count, len(others))
            with self._lock:
                self._look = look
            used_ns, before_ns = time.thread_time_ns(), used_ns
            self._pause.used(looked_ns := clock_ns(), used_ns - before_ns)
            if self._uses_pause.is_due(looked_ns):
                self._uses = self._uses_of(numbers, blocks, others)
                self._uses_pause.used(clock_ns(), time.thread_time_ns() - used_ns)
        except OSError:
            return  # it has just ended
        finally:
            table.close()

    def _uses_of(
        self, numbers: NDArray[np.uint64], blocks: NDArray[np.void], others: NDArray[np.uint64]
    ) -> dict[int, Counter[str]]:
        """The kinds of a sample of the descriptors, for the largest stacks and for those without a stack."""
        stack_ids, counts = np.unique(blocks["stack_id"], return_counts=True)
        samples = {}
        for stack_id in stack_ids[np.argsort(-counts, kind="stable")][:_SITES_LOOKED_AT].tolist():
            samples[stack_id] = _sample(numbers[blocks["stack_id"] == stack_id])
        samples[_OTHERS_ID] = _sample(others)
        return uses_of_numbers(self._process.pid, samples, self._proc)


def _counters(count: int, opened: int) -> tuple[int, ...]:
    """The columns COUNTERS of a call site with `count` open; `opened` may be slightly older."""
    opened, each = max(count, opened), DESCRIPTOR_BYTES
    return each * count, count, each * opened, opened, 0, each * count, 0, 0


def _sample(numbers: NDArray[np.uint64]) -> list[int]:
    sample: list[int] = numbers[:: max(1, -(-len(numbers) // _SAMPLE_MAX))].tolist()
    return sample


def _rate_per_min(verdict: SiteVerdict) -> float:
    grows = verdict.verdict in (Verdict.LEAK, Verdict.GROWING)
    return round(verdict.leak_bytes_per_s / DESCRIPTOR_BYTES * 60, 1) if grows else 0.0


def shares_of(uses: Counter[str]) -> tuple[ResourceShare, ...]:
    """The most frequent kinds, the largest share first."""
    total = uses.total()
    return tuple(
        ResourceShare(what, round(count / total, 3))
        for what, count in uses.most_common(_SHARES_MAX)
        if count / total >= _SHARE_MIN
    )


def _oldest(blocks: NDArray[np.void]) -> dict[int, int]:
    """The time at which the oldest descriptor of each stack was opened."""
    order = np.lexsort((blocks["born_ns"], blocks["stack_id"]))
    stack_ids, first = np.unique(blocks["stack_id"][order], return_index=True)
    return dict(zip(stack_ids.tolist(), blocks["born_ns"][order][first].tolist(), strict=True))
