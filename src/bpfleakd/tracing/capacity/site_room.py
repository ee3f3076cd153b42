"""Makes room for new call sites, by removing those that have been without live blocks for a while.

A JIT moves its code, so a busy server has new stacks for as long as it runs, most of them through code that
no longer exists.

Rules:
  - Nothing is removed while a quarter of the table, and of each process' share of it, is free.
  - The longest unused sites go first. A site stays while it leaks or grows.
  - A removed site may be judged together with one that has live blocks, because both are the same code or the
    same function. Then the one with the most blocks takes over its history, since their sum is judged.
  - The allocations of a removed site stay in the sums of its process.
  - A round takes a tenth of a second, for one process, and a twentieth of the time at most.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import structlog
from numpy.typing import NDArray

from bpfleakd.kernel.compilation.options import Capacities
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.reading_budget import Pause
from bpfleakd.tracing.traced_process import TracedProcess

log = structlog.get_logger()

_LIVE_COUNT, _ALLOCATED_COUNT = COUNTERS.index("live_count"), COUNTERS.index("allocated_count")
_OVERFLOW = SiteKey(AllocationKind.HEAP, 0)
_FULL_SHARE = 0.75
_UNUSED_NS = 10_000_000_000
# Removing fewer at a time is not worth two grace periods.
_LEAST, _MOST = 256, 4_096
_PAUSE_FACTOR = 20


class SiteRoom:
    """Makes room in the tables of `maps`, whose limits are `capacities`. `clock_ns` is CLOCK_MONOTONIC."""

    def __init__(self, maps: Maps, capacities: Capacities, clock_ns: Callable[[], int]) -> None:
        self._maps = maps
        self._capacities = capacities
        self._clock_ns = clock_ns
        self._pause = Pause(_PAUSE_FACTOR)

    def make(self, processes: Collection[TracedProcess]) -> None:
        """Remove unused sites of the process with the most, if there is little room."""
        began_ns = self._clock_ns()
        if not self._pause.is_due(began_ns):
            return
        # The table of a process that is set aside is old.
        for traced in self._full([one for one in processes if not one.is_set_aside(began_ns)]):
            with traced.isolated(self._clock_ns):
                rows = _unused(traced, began_ns)
                if len(rows) < _LEAST:
                    continue
                self._remove(traced, rows[:_MOST])
            break
        self._pause.done(began_ns, self._clock_ns())

    def _full(self, processes: Collection[TracedProcess]) -> list[TracedProcess]:
        """Processes that need room, for themselves or for others, the largest first."""
        limits = self._capacities
        sites = sum(traced.counters.site_count for traced in processes)
        stacks = sum(traced.counters.stack_count for traced in processes)
        share = limits.process_sites
        if sites > _FULL_SHARE * limits.sites or stacks > _FULL_SHARE * limits.stacks:
            share = 0
        full = [one for one in processes if not one.is_gone and _taken(one.counters) > _FULL_SHARE * share]
        return sorted(full, key=lambda traced: -_taken(traced.counters))

    def _remove(self, traced: TracedProcess, rows: NDArray[np.intp]) -> None:
        table, remover, pid = traced.table, self._maps.site_remover, traced.pid
        stack_ids = np.array([key.stack_id for key in table.keys_of(rows)], np.uint64)
        removed = remover.remove(pid, stack_ids)
        traced.forget_sites(rows[removed], _heirs(traced, rows[removed]))
        used = {key.stack_id for key in table.keys_of(table.rows)}
        orphaned = [stack_id for stack_id in stack_ids[removed].tolist() if stack_id not in used]
        remover.remove_stacks(pid, np.array(orphaned, np.uint64))
        traced.runtimes.forget_stacks(orphaned)
        if not traced.counters.sites_removed:
            # Once per process: a busy JIT needs it every few seconds. `ps` has the number.
            log.info("sites.removed", pid=pid, sites=int(removed.sum()), left=table.used_count)


def _taken(counters: ProcessCounters) -> int:
    return max(counters.site_count, counters.stack_count)


def _unused(traced: TracedProcess, now_ns: int) -> NDArray[np.intp]:
    """The rows of sites that may be removed, the longest unused first."""
    table = traced.table
    rows, columns = table.rows, table.columns()
    live = columns[:, _LIVE_COUNT] > 0
    changed_ns = table.changed_ns(rows)
    may_go = table.are_heap(rows) & ~live[rows] & (columns[rows, _ALLOCATED_COUNT] > 0)
    may_go &= changed_ns <= now_ns - _UNUSED_NS
    attention, _rates = traced.verdicts.ranks(rows)
    may_go &= attention == 0
    may_go &= rows != table.row_of(_OVERFLOW)
    order = np.argsort(changed_ns[may_go], kind="stable")
    unused: NDArray[np.intp] = rows[may_go][order]
    return unused


def _heirs(traced: TracedProcess, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each row the one with the most live blocks of those that are judged with it, or -1."""
    table, charging = traced.table, traced.charging
    live_count = table.columns()[:, _LIVE_COUNT]
    live = np.flatnonzero(live_count > 0)
    live = live[np.argsort(live_count[live], kind="stable")]
    heirs = np.full(len(rows), -1)
    # The same code comes before the same function.
    for units in (charging.functions(table), charging.units(table)):
        if units is not None:
            largest = np.full(len(table), -1)
            largest[units.lead[live]] = live
            found = largest[units.lead[rows]]
            heirs = np.where(found >= 0, found, heirs)
    return heirs
