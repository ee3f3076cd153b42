"""The open descriptors of a traced process by the call site that opened them, while they are recorded.

Rules:
  - The programs record which stack opened each descriptor. They do not see all ways to close one, so a
    descriptor counts only if /proc/PID/fd has it, too.
  - Both are read beside the tracing loop, in a small share of the time; more rarely, what descriptors are.
  - Call sites are judged as those of memory are, with so many bytes for each descriptor. That is done in the
    tracing loop, so there is a pause after it, too: a process may have as many call sites as it likes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpfleakd.kernel.descriptor_tables import DescriptorTable, DescriptorTables
from bpfleakd.model.process import ProcessId
from bpfleakd.model.resources import ResourceShare
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.process.descriptors import open_numbers, uses_of_numbers
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts
from bpfleakd.tracing.reading_budget import Pause
from bpfleakd.verdicts.measurement import LEAK_AFTER_S

__all__ = ["DESCRIPTOR_BYTES", "DescriptorSites", "OpenDescriptors", "shares_of"]

PROC = Path("/proc")
_NS_PER_S = 1_000_000_000
_PAUSE_NS = _NS_PER_S
_PAUSE_FACTOR = 200
_TAKING_PAUSE_FACTOR = 50
# What the kernel needs for one, roughly: a file and its socket.
DESCRIPTOR_BYTES = 4_096
# Of how many call sites it is found out what they have opened, and of how many descriptors each.
_SITES_LOOKED_AT = 5
_SAMPLE_MAX = 50
_SITES_MAX = 100
_SHARES_MAX = 5
_SHARE_MIN = 0.05


@dataclass(frozen=True, slots=True)
class OpenDescriptors:
    """Those of one call site: how many are open, how many it has opened, and its verdict.

    `growth_per_min` is 0 unless they grow permanently; `shares` are what they are, for the largest sites.
    """

    key: SiteKey
    open_count: int
    opened_count: int
    oldest_born_ns: int
    growth_per_min: float
    verdict: SiteVerdict
    shares: tuple[ResourceShare, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """What was open at `at_ns`: LIVE_BLOCK records, and how many each stack had `opened` before."""

    at_ns: int
    blocks: NDArray[np.void]
    opened: dict[int, int]


class DescriptorSites:
    """The call sites of one process. Nothing is in it before `begin`."""

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
        self._due_ns = 0
        self._lock = threading.Lock()
        self._look: _Look | None = None
        self._taken: _Look | None = None
        self._sites: tuple[OpenDescriptors, ...] = ()

    @property
    def is_recorded(self) -> bool:
        """Whether descriptors are recorded."""
        return self._table is not None

    def begin(self, now_ns: int, *, knows_past: bool = True) -> None:
        """They are recorded from now on; without `knows_past`, an earlier daemon had begun that."""
        self._table = SiteTable(now_ns, knows_past=knows_past)
        self._verdicts = SiteVerdicts(self._leak_after_s)
        self._forget()

    def end(self) -> None:
        """They are not recorded any more."""
        self._table = None
        self._forget()

    def note_opened(self, stack_ids: Sequence[int], opened: Sequence[int]) -> None:
        """So many descriptors were opened by these stacks, by the programs' counters."""
        self._opened.update(zip(stack_ids, opened, strict=True))

    def read(self, tables: DescriptorTables, clock_ns: Callable[[], int], background: Background) -> None:
        """Look at what is open, if it is time to. `clock_ns` is CLOCK_MONOTONIC."""
        now_ns = clock_ns()
        if self._table is None:
            return
        if now_ns >= self._due_ns and self._pause.is_due(now_ns):
            table = tables.open(self._process.pid)
            if table is not None:
                look = partial(self._look_closer, table, dict(self._opened), clock_ns)
                if not background.begin(str(self._process), look):
                    table.close()
            self._due_ns = now_ns + _PAUSE_NS
        with self._lock:
            found = self._look
        began_ns = clock_ns()
        # A look that began before the recording did is of an earlier one.
        is_new = found is not None and found is not self._taken and found.at_ns >= self._table.updated_ns
        if found is not None and is_new and self._taking_pause.is_due(began_ns):
            self._take(self._table, found, clock_ns)
            self._sites = self._ranked(self._table, found)
            self._taking_pause.done(began_ns, clock_ns())

    def sites(self) -> tuple[OpenDescriptors, ...]:
        """Those with open descriptors: what grows fastest first, then those with the most; at most 100."""
        return self._sites

    def _forget(self) -> None:
        with self._lock:
            self._look = None
        self._taken = None
        self._sites = ()

    def _ranked(self, table: SiteTable, look: _Look) -> tuple[OpenDescriptors, ...]:
        open_counts = table.columns()[:, COUNTERS.index("live_count")]
        rows = np.flatnonzero(open_counts)
        attention, rates = self._verdicts.ranks(rows)
        rows = rows[np.lexsort((open_counts[rows], rates, attention > 0))[::-1][:_SITES_MAX]]
        oldest, keys = _oldest(look.blocks), table.keys
        sites = (
            self._site(table, row, keys[row], oldest.get(keys[row].stack_id, 0)) for row in rows.tolist()
        )
        return tuple(sorted(sites, key=lambda site: (-site.growth_per_min, -site.open_count)))

    def _site(self, table: SiteTable, row: int, key: SiteKey, oldest_born_ns: int) -> OpenDescriptors:
        counters = table.counters(key)
        verdict = self._verdicts.of(row, counters.live_count, counters.allocated_count)
        grows = verdict.verdict in (Verdict.LEAK, Verdict.GROWING)
        rate = round(verdict.leak_bytes_per_s / DESCRIPTOR_BYTES * 60, 1) if grows else 0.0
        return OpenDescriptors(
            key,
            counters.live_count,
            counters.allocated_count,
            oldest_born_ns,
            rate,
            verdict,
            shares_of(self._uses.get(key.stack_id, Counter())),
        )

    def _take(self, table: SiteTable, look: _Look, clock_ns: Callable[[], int]) -> None:
        self._taken = look
        stack_ids, counts = np.unique(look.blocks["stack_id"], return_counts=True)
        open_counts = dict(zip(stack_ids.tolist(), counts.tolist(), strict=True))
        known = dict.fromkeys(key.stack_id for key in table.keys)
        keys = list(known | dict.fromkeys(open_counts))
        rows = [_counters(open_counts.get(one, 0), look.opened.get(one, 0)) for one in keys]
        columns = np.array(rows, np.int64).reshape(-1, len(COUNTERS))
        sites = [SiteKey(AllocationKind.DESCRIPTOR, stack_id) for stack_id in keys]
        table.update(look.at_ns, sites, columns)
        self._verdicts.compute(table, [look.blocks], clock_ns)

    def _look_closer(
        self, table: DescriptorTable, opened: dict[int, int], clock_ns: Callable[[], int]
    ) -> None:
        began_ns = clock_ns()
        try:
            # In this order: whatever is in the table and not open was closed.
            numbers, blocks = table.read()
            are_open = np.isin(numbers, open_numbers(self._process.pid, self._proc))
            gone = zip(numbers[~are_open].tolist(), blocks["born_ns"][~are_open].tolist(), strict=True)
            for number, born_ns in gone:
                table.forget(number, born_ns)
            numbers, blocks = numbers[are_open], blocks[are_open]
            blocks["size"] = blocks["weight"] = DESCRIPTOR_BYTES
            look = _Look(began_ns, blocks, opened)
            with self._lock:
                self._look = look
            self._pause.done(began_ns, looked_ns := clock_ns())
            if self._uses_pause.is_due(looked_ns):
                self._uses = self._uses_of(numbers, blocks)
                self._uses_pause.done(looked_ns, clock_ns())
        except OSError:
            return  # it has just ended
        finally:
            table.close()

    def _uses_of(self, numbers: NDArray[np.uint64], blocks: NDArray[np.void]) -> dict[int, Counter[str]]:
        """What the descriptors of the stacks with the most are, of a sample."""
        stack_ids, counts = np.unique(blocks["stack_id"], return_counts=True)
        samples = {}
        for stack_id in stack_ids[np.argsort(-counts, kind="stable")][:_SITES_LOOKED_AT].tolist():
            of_stack = numbers[blocks["stack_id"] == stack_id]
            step = max(1, -(-len(of_stack) // _SAMPLE_MAX))
            samples[stack_id] = of_stack[::step].tolist()
        return uses_of_numbers(self._process.pid, samples, self._proc)


def _counters(count: int, opened: int) -> tuple[int, ...]:
    """The columns COUNTERS of a call site with so many open; `opened` may be of a little earlier."""
    opened, each = max(count, opened), DESCRIPTOR_BYTES
    return each * count, count, each * opened, opened, 0, each * count, 0, 0


def shares_of(uses: Counter[str]) -> tuple[ResourceShare, ...]:
    """What most of them are, the largest share first."""
    total = uses.total()
    return tuple(
        ResourceShare(what, round(count / total, 3))
        for what, count in uses.most_common(_SHARES_MAX)
        if count / total >= _SHARE_MIN
    )


def _oldest(blocks: NDArray[np.void]) -> dict[int, int]:
    """When the oldest of each stack was opened."""
    order = np.lexsort((blocks["born_ns"], blocks["stack_id"]))
    stack_ids, first = np.unique(blocks["stack_id"][order], return_index=True)
    return dict(zip(stack_ids.tolist(), blocks["born_ns"][order][first].tolist(), strict=True))
