"""Updates the tables of the traced processes from the programs' counters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np
import structlog
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.kernel import abi
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.kernel.skipped_runs import SkippedRuns
from bpfleakd.model.site import SiteKey
from bpfleakd.runtimes.go.program import find_more_go
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.attaching.attach import Attacher
from bpfleakd.tracing.attaching.code_reader import not_yet
from bpfleakd.tracing.reading_budget import ReadingBudget
from bpfleakd.tracing.recorded_state import RecordedState
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.traced_processes import TracedProcesses
from bpfleakd.tracing.unwinding import Unwinding

log = structlog.get_logger()

# A longer reading was interrupted: the daemon stalled, or the machine slept.
_STALLED_NS = 200_000_000
_READINGS_MAX = 3
# How long new libraries of one process may delay all others, per look.
_LIBRARIES_WAIT_S = 0.02
# Time limits for reading the managed frames of new stacks, in one reading of all counters. It usually takes
# 20 us per stack, but a process may make it take any time to keep its reader busy.
_NOTED_NS, _NOTED_MOST_NS, _NOTED_FAIR_NS = 100_000_000, 50_000_000, 2_000_000


class CounterCollector:
    """Reads counters, changes of address spaces and of libraries, for all traced processes."""

    def __init__(
        self,
        maps: Maps,
        attacher: Attacher,
        unwinding: Unwinding,
        state: RecordedState,
        processes: TracedProcesses,
        clock_ns: Callable[[], int],
    ) -> None:
        self._maps = maps
        self._attacher = attacher
        self._unwinding = unwinding
        self._state = state
        self._processes = processes
        self._clock_ns = clock_ns
        self._skipped = SkippedRuns()
        self._noting = ReadingBudget(total_ns=_NOTED_NS, most_ns=_NOTED_MOST_NS, fair_ns=_NOTED_FAIR_NS)

    def collect(self) -> int:
        """Update all tables, except those of processes that are set aside.

        Returns the time of the figures: when the counters were read, not when this was called, since a daemon
        may stall in between.
        """
        # First, so a peak of the heap can be distinguished from those of the events.
        idle = self._maps.shared.idle_unmatched_frees()
        counters = {pid: self._maps.process(pid, idle[pid]) for pid in self._processes.running}
        self._make_up_for(self._maps.skipped_runs())
        for pid in self._state.feed.read():
            if traced := self._processes.running.get(pid):
                traced.followed_changes = None
        changed, now_ns = self._changed_sites()
        self._noting.begin()
        for pid, traced in self._processes.running.items():
            if not traced.is_set_aside(now_ns):
                with traced.isolated(self._clock_ns):
                    stack_ids, opened = changed.descriptors_of(pid)
                    self._maps.site_remover.restore_stacks(pid, stack_ids)
                    traced.descriptors.note_opened(stack_ids, opened)
                    self._take(traced, counters[pid], *changed.of(pid), now_ns)
        return now_ns

    def _changed_sites(self) -> tuple[_ChangedSites, int]:
        """The changes, and when they were read.

        If that took long, the time of the counters is uncertain, so they are read once more.
        """
        readings = []
        for _ in range(_READINGS_MAX):
            began_ns = self._clock_ns()
            readings.append(self._maps.changed_sites())
            now_ns = self._clock_ns()
            if now_ns - began_ns <= _STALLED_NS:
                break
        return _ChangedSites(*_latest(readings)), now_ns

    def _take(
        self,
        traced: TracedProcess,
        counters: ProcessCounters,
        site_keys: list[SiteKey],
        columns: NDArray[np.int64],
        now_ns: int,
    ) -> None:
        pid, address_maps = traced.pid, self._state.address_maps
        counters.losses["event_full"] += address_maps.skipped(pid)
        if not traced.is_gone:
            lost = traced.counters.losses["event_full"] + self._skipped.address_space_changes
            address_maps.repair(pid, lost)
            if counters.space_at_sites:
                self._judge_sites(traced, counters, now_ns)
            if traced.attachment.is_inside:
                self._limit_cost(traced, counters, now_ns)
        space = address_maps.map_of(pid)
        traced.unrecorded_regions = space.unrecorded_count if space else 0
        space_keys, space_columns = space.counters() if space else ([], columns[:0])
        self._maps.site_remover.restore_stacks(pid, (key.stack_id for key in site_keys + space_keys))
        noting_ns = self._clock_ns()
        traced.runtimes.note_stacks(
            (key.stack_id for key in site_keys + space_keys),
            partial(self._maps.stack, pid),
            self._noting.left_ns(pid),
        )
        self._noting.charge(pid, self._clock_ns() - noting_ns)
        traced.runtimes.charge_blocks(partial(self._maps.stack_of_block, pid))
        go_keys, go_columns = traced.go.read(now_ns) if traced.go is not None else ([], columns[:0])
        if traced.go is not None and traced.goroutines is not None:
            traced.goroutines.read(now_ns)
            traced.verdicts.observed.note_collections(now_ns, traced.go.new_collections())
        all_columns = np.concatenate([columns, space_columns, go_columns])
        traced.table.update(now_ns, site_keys + space_keys + go_keys, all_columns)
        traced.counters = counters
        traced.note_code(self._maps, counters.code_changes)
        heap = traced.table.heap_totals
        self._state.sampling.adapt(pid, counters, heap.allocated_bytes, now_ns)
        regions = traced.unrecorded_regions, traced.table.totals.allocated_count - heap.allocated_count
        traced.verdicts.observed.note(now_ns, counters, heap, regions)
        # While the table of blocks is full, the judged part of the timeline keeps its resolution.
        traced.table.timeline.held_ns = traced.verdicts.observed.full_since_ns
        traced.table.note_peak(address_maps.peak_live_bytes(pid, counters.heap_peak_bytes, now_ns))
        self._follow_changed_libraries(traced, counters.library_changes)

    def _make_up_for(self, skipped: SkippedRuns) -> None:
        """Recover the reports of program runs that the kernel has skipped."""
        if skipped == self._skipped:
            return
        before, self._skipped = self._skipped, skipped
        log.warning("programs.skipped", **skipped._asdict())
        if skipped.thread_ends != before.thread_ends:
            self._maps.remove_ended_threads(self._processes.running.keys())
        if skipped.execs != before.execs:
            for pid, traced in self._processes.running.items():
                with traced.isolated(self._clock_ns):
                    if traced.has_other_stack():
                        self._maps.set_state(pid, RecordingState.EXECED)

    def _judge_sites(self, traced: TracedProcess, counters: ProcessCounters, now_ns: int) -> None:
        """Change to the kernel's reports if the process' own places do not suit."""
        pid = traced.pid
        reason = self._state.site_calls.objection(pid, counters, now_ns)
        # Linked first: no call is missed.
        if not reason or not self._state.watch_address_spaces((), anyway=True):
            return
        self._maps.see_address_space_at_sites(pid, False)
        traced.attachment = self._attacher.leave_sites(traced.attachment)
        log.info("space.watched-in-kernel", pid=pid, reason=reason)

    def _limit_cost(self, traced: TracedProcess, counters: ProcessCounters, now_ns: int) -> None:
        """Choose how coarse the sampler inside a process is."""
        attachment, costs = traced.attachment, self._state.inside_costs
        before = self._attacher.doublings(attachment)
        doublings = costs.wanted_doublings(traced.pid, before, counters, now_ns)
        if doublings == before:
            return
        try:
            self._attacher.double_interval(attachment, doublings)
        except (OSError, errors.BpfleakdError) as error:
            log.info("process.interval-not-changed", pid=traced.pid, reason=str(error))
            return
        log.debug("process.interval-changed", pid=traced.pid, doublings=doublings)

    def follow_libraries(self, traced: TracedProcess) -> None:
        """Probe, unwind and name newly loaded code of a process. Raises NotYet while that is being read."""
        # After exec the libraries belong to another program.
        if traced.is_gone or self._maps.process(traced.pid).state is not RecordingState.RECORDING:
            return
        try:
            code = self._attacher.read_code(traced.attachment)
            go = find_more_go(code, traced.attachment.go)
        except errors.NoSuchProcess:
            # It has just ended, which the next tick notices.
            return
        traced.symbolizer.update_mappings(code.mappings)
        traced.note_code(self._maps)
        traced.follow_go(go, self._clock_ns)
        self._unwinding.follow(code, wait_s=0.0)
        traced.attachment = self._attacher.follow(traced.attachment, code, _LIBRARIES_WAIT_S)
        # After its probes, on which the walker of Python frames relies.
        traced.follow_runtimes(self._maps, code.mappings, self._clock_ns())
        level = log.info if traced.libraries_log.take(self._clock_ns()) else log.debug
        level("process.libraries-changed", pid=traced.pid, mappings=len(code.mappings))
        if code.unanswered:
            raise not_yet(code)

    def _follow_changed_libraries(self, traced: TracedProcess, changes: int) -> None:
        """The more time a process' libraries take, the longer it waits: it may map them without end."""
        began_ns = self._clock_ns()
        is_wanted = traced.followed_changes != changes or traced.runtimes.is_awaited()
        if is_wanted and traced.library_pause.is_due(began_ns):
            # Missing ones are requested again.
            with contextlib.suppress(errors.NotYet):
                self.follow_libraries(traced)
                traced.followed_changes = changes
            traced.library_pause.done(began_ns, self._clock_ns())


def _latest(readings: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Merge several readings: the last one of each site."""
    if len(readings) == 1:
        return readings[0]
    keys, sites = (np.concatenate(columns)[::-1] for columns in zip(*readings, strict=True))
    _keys, newest = np.unique(keys, return_index=True)
    return keys[newest], sites[newest]


class _ChangedSites:
    """A reading of sites, by process."""

    def __init__(self, keys: np.ndarray, sites: np.ndarray) -> None:
        order = np.argsort(keys["tgid"], kind="stable")
        self._keys, sites = keys[order], sites[order]
        self._columns = np.stack([sites[name].astype(np.int64) for name in COUNTERS], axis=1)

    def of(self, pid: int) -> tuple[list[SiteKey], NDArray[np.int64]]:
        """The memory sites of a process, and their counters (columns COUNTERS)."""
        rows = self._rows_of(pid)
        rows = rows[self._keys["kind"][rows] != abi.DESCRIPTOR_KIND]
        kinds, stack_ids = (self._keys[name][rows].tolist() for name in ("kind", "stack_id"))
        keys = [SiteKey(abi.KINDS[kind], number) for kind, number in zip(kinds, stack_ids, strict=True)]
        return keys, self._columns[rows]

    def descriptors_of(self, pid: int) -> tuple[list[int], list[int]]:
        """The stacks that opened descriptors in a process, and how many each opened."""
        rows = self._rows_of(pid)
        rows = rows[self._keys["kind"][rows] == abi.DESCRIPTOR_KIND]
        opened = self._columns[rows, COUNTERS.index("allocated_count")]
        return self._keys["stack_id"][rows].tolist(), opened.tolist()

    def _rows_of(self, pid: int) -> NDArray[np.intp]:
        return np.arange(*np.searchsorted(self._keys["tgid"], [pid, pid + 1]))
