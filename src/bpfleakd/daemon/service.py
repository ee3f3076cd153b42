"""The daemon's side of the API (api.service.Service): requests run in the worker's thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from bpfleakd import errors
from bpfleakd.config import Config
from bpfleakd.daemon import c_heap
from bpfleakd.daemon.backend import Backend
from bpfleakd.daemon.worker import Worker
from bpfleakd.model.address_space import AddressSpaceReport
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.difference import DiffReport
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.history import StoredHistory
from bpfleakd.model.metrics import MetricsSnapshot
from bpfleakd.model.process import ProcessRow, ProcessSelection, TracingMode
from bpfleakd.model.report import HeapProfile, LeakReport, SortKey, StoredReport, StoredReportEntry
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.model.runtimes.requested import HeapSample, HeapSamplePrice, NamesReport
from bpfleakd.model.runtimes.survivors import SurvivorsPrice, SurvivorsReport
from bpfleakd.model.scan import ScanReport
from bpfleakd.model.supervision import SupervisedProcess
from bpfleakd.model.watching import WatchedProcess
from bpfleakd.process.policy.selection import selected_pids
from bpfleakd.process.reading.reads import reads
from bpfleakd.queries.process_queries import ProcessQueries
from bpfleakd.queries.requested import (
    heap_sample,
    heap_sample_price,
    read_types,
    sampled_survivors,
    survivors_price,
    with_new_names,
)
from bpfleakd.queries.scans import PendingScan, ScanOptions
from bpfleakd.runtimes.runtime import RuntimeFailure
from bpfleakd.suppressions import read_suppressions
from bpfleakd.tracing.attaching.attach import IMPATIENT, PATIENT
from bpfleakd.tracing.attaching.discovery import SEARCH_WAIT_S
from bpfleakd.tracing.lifetime.tick_pace import NextTick

log = structlog.get_logger()

_Answer = TypeVar("_Answer")

# How long an answer waits for names; missing ones are then shown as file and offset.
_NAMES_LIMIT_S = 5.0
_NAMES_PAUSE_S = 0.02
_LAST_SITES = 100
# How long a request for a process waits for its unwind tables.
_TABLES_LIMIT_S = 5.0
_ATTACH_PAUSE_S = 0.01
# Verdicts and large answers leave holes in the heap.
_TRIM_PAUSE_S = 10.0
# How long a tick may take at idle priority.
_IDLE_MOST_S = 5.0


class DaemonService:
    """The backend for the asyncio loop: each request waits for its turn in the worker's queue.

    `attached` is called in the loop after an attach.
    """

    def __init__(
        self, worker: Worker, config: Config, *, attached: Callable[[], None] = lambda: None
    ) -> None:
        self._worker = worker
        self._attached = attached
        self._backend = Backend(config, worker, attached)
        self._scanning = asyncio.Lock()
        self._scan: PendingScan | None = None
        self._requesting = asyncio.Lock()
        self._sampling = asyncio.Lock()
        self._trim_due_s = 0.0
        self.next_tick = NextTick()

    @property
    def snapshot(self) -> MetricsSnapshot:
        """The content of the metrics as of the last tick; does not wait."""
        return self._backend.snapshot

    async def start(self) -> None:
        """Load the programs. Requests that arrive meanwhile wait in the worker's queue."""
        loop = asyncio.get_running_loop()
        await self._worker.call(lambda: self._backend.open(loop))
        self._backend.supervision.start()

    async def stop(self, *, keep: bool) -> None:
        """Detach from everything and unload, or `keep` everything for the next daemon."""
        if self._scan is not None:
            self._scan.cancel()
        if self._backend.is_supervised:
            await self._backend.supervision.stop()
        await self._worker.call(self._backend.close, keep=keep)

    async def attach(
        self, pid: int, mode: TracingMode | None = None, *, enable_profile: bool = False
    ) -> ProcessRow:
        began_s = time.monotonic()
        pause_s = _ATTACH_PAUSE_S
        self._backend.expect_questions()
        while True:
            # Its files are read outside of the tracing loop; eventually tracing starts without unwind tables.
            waited_s = time.monotonic() - began_s
            wait = PATIENT if waited_s < _TABLES_LIMIT_S else IMPATIENT
            attach = partial(self._backend.attach, pid, mode, wait, enable_profile=enable_profile)
            try:
                row = await self._worker.call(attach)
            except errors.NotYet:
                if waited_s > SEARCH_WAIT_S:
                    raise
            else:
                self._attached()
                return row
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 20 * _ATTACH_PAUSE_S)

    async def detach(self, pid: int) -> ProcessRow:
        with contextlib.suppress(Exception):
            # Its stored figures, too; the process is detached even if the report fails.
            await self.report(pid, limit=_LAST_SITES, sort=SortKey.VERDICT)
        return await self._worker.call(lambda: self._backend.detach(pid))

    async def processes(self) -> tuple[ProcessRow, ...]:
        return await self._worker.call(self._backend.processes)

    async def watched(self) -> tuple[WatchedProcess, ...]:
        return await self._worker.call(self._backend.watcher.processes)

    async def supervised(self) -> tuple[SupervisedProcess, ...]:
        return await self._worker.call(lambda: self._backend.supervision.processes())

    async def matching(self, selection: ProcessSelection, *, asking_pid: int) -> tuple[int, ...]:
        # The current /proc: the supervisor learns of a program only some time after its exec.
        return await asyncio.to_thread(selected_pids, selection, own_pid=os.getpid(), asking_pid=asking_pid)

    async def use(self, config: Config) -> None:
        """Apply changes that need no restart, and read files of suppressions again."""
        try:
            suppressions = await asyncio.to_thread(read_suppressions, config.suppressions)
        except errors.ConfigError as error:
            log.error("suppressions.rejected", reason=error.message, hint=error.hint)
        else:
            await self._worker.call(self._backend.use_suppressions, suppressions)
        await self._backend.supervision.use(config)

    async def report(
        self, pid: int, *, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> LeakReport:
        return await self._ask_with_names(
            pid, lambda queries: queries.report(pid, limit=limit, sort=sort, suppress=suppress)
        )

    async def groups(
        self, pid: int, *, by: GroupKey, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> GroupedReport:
        return await self._ask_with_names(
            pid, lambda queries: queries.groups(pid, by=by, limit=limit, sort=sort, suppress=suppress)
        )

    async def profile(self, pid: int) -> HeapProfile:
        return await self._ask_with_names(pid, lambda queries: queries.profile(pid))

    async def blocks(
        self, pid: int, *, site: str | None, older_than_s: float, limit: int, suppress: bool = True
    ) -> BlocksReport:
        return await self._ask_with_names(
            pid,
            lambda queries: queries.blocks(
                pid, site=site, older_than_s=older_than_s, limit=limit, suppress=suppress
            ),
        )

    async def scan(
        self, pid: int, *, older_than_s: float, stop: bool, stop_limit_s: float, limit: int
    ) -> ScanReport:
        # One at a time: each may take several times the daemon's own memory.
        async with self._scanning:
            options = ScanOptions(older_than_s, stop, stop_limit_s, limit, self._backend.suppressions)
            report = await self._scanned(pid, options, trust_heap=True)
            if report is None:  # the heap gave memory back in that very moment
                report = await self._scanned(pid, options, trust_heap=False)
            assert report is not None
            return report

    async def _scanned(self, pid: int, options: ScanOptions, *, trust_heap: bool) -> ScanReport | None:
        self._scan = scan = await self._ask(
            lambda queries: queries.begin_scan(pid, options, trust_heap=trust_heap)
        )
        try:
            reply = await asyncio.to_thread(scan.run)
            return await self._ask_with_names(pid, lambda queries: queries.finish_scan(scan, reply))
        finally:
            self._scan = None

    async def types_price(self, pid: int) -> TypesPrice:
        return await self._ask(lambda queries: queries.types_price(pid))

    async def types(self, pid: int, *, stop: bool = True) -> TypesReport:
        async with self._scanning:
            source = await self._ask(lambda queries: queries.type_source(pid))
            began_s = time.monotonic()
            counts = await asyncio.to_thread(read_types, source, stop=stop)
            took_s = time.monotonic() - began_s
            return await self._ask(lambda queries: queries.note_types(pid, counts, took_s))

    async def names(self, pid: int) -> NamesReport:
        return await self._ask_with_names(pid, lambda queries: queries.names(pid))

    async def request_names(self, pid: int) -> NamesReport:
        async with self._requesting:
            before = await self.names(pid)
            runtime, perf_map = await self._ask(lambda queries: queries.perf_map_writer(pid))
            began_s = time.monotonic()
            written = perf_map.written()
            try:
                await asyncio.to_thread(written.__enter__)
            except RuntimeFailure as error:
                raise errors.TargetRefused(f"names cannot be requested of process {pid}: {error}") from error
            try:
                await self._ask(lambda queries: queries.hold_perf_map(pid))
            finally:
                await asyncio.to_thread(written.__exit__, None, None, None)
            took_s = time.monotonic() - began_s
            return with_new_names(before, await self.names(pid), runtime, perf_map.command, took_s)

    async def heap_sample_price(self, pid: int) -> HeapSamplePrice:
        comm, runtime, sampler = await self._ask(lambda queries: queries.heap_sampler(pid))
        return await asyncio.to_thread(heap_sample_price, pid, comm, runtime, sampler)

    async def heap_sample(self, pid: int, *, sample_s: float) -> HeapSample:
        async with self._sampling:
            comm, runtime, sampler = await self._ask(lambda queries: queries.heap_sampler(pid))
            return await asyncio.to_thread(heap_sample, pid, comm, runtime, sampler, sample_s)

    async def survivors_price(self, pid: int) -> SurvivorsPrice:
        comm, runtime, sampler = await self._ask(lambda queries: queries.survivor_sampler(pid))
        return await asyncio.to_thread(survivors_price, pid, comm, runtime, sampler)

    async def survivors(self, pid: int, *, sample_s: float) -> SurvivorsReport:
        async with self._sampling:
            comm, runtime, sampler = await self._ask(lambda queries: queries.survivor_sampler(pid))
            return await asyncio.to_thread(sampled_survivors, pid, comm, runtime, sampler, sample_s)

    async def history(
        self, pid: int, *, limit: int | None, site: str | None = None, survivors: bool = True
    ) -> StoredHistory:
        return await self._ask_with_names(
            pid, lambda queries: queries.history(pid, limit=limit, site=site, survivors=survivors)
        )

    async def compare(self, pid: int, *, from_ago_s: float | None, to_ago_s: float) -> DiffReport:
        return await self._ask_with_names(
            pid, lambda queries: queries.compare(pid, from_ago_s=from_ago_s, to_ago_s=to_ago_s)
        )

    async def address_space(self, pid: int) -> AddressSpaceReport:
        return await self._ask_with_names(pid, lambda queries: queries.address_space(pid))

    async def reports(self, pid: int | None, *, limit: int) -> tuple[StoredReportEntry, ...]:
        return await self._worker.call(lambda: self._backend.reports.newest(pid, limit))

    async def stored_report(self, number: int) -> StoredReport:
        return await self._worker.call(lambda: self._backend.reports.get(number))

    async def stats(self) -> DaemonStats:
        return await self._worker.call(self._backend.stats)

    async def tick(self) -> float:
        """Run one tick; returns how many seconds reading the counters took.

        At idle priority, where nothing needs a prompt reading (`next_tick`).
        """
        idle_s, self.next_tick = min(self.next_tick.idle_s, _IDLE_MOST_S), NextTick()
        idle_until_s = time.monotonic() + idle_s
        took_s = await self._call(self._backend.tracer.tick, idle_until_s)
        await self._call(self._backend.keep_budget, idle_until_s)
        await self.oversee(idle_until_s)
        await self._call(self._backend.refresh_snapshot, idle_until_s)
        await self._call(reads().close_idle, idle_until_s)
        now_s = time.monotonic()
        if now_s >= self._trim_due_s:
            await self._call(c_heap.trim, idle_until_s)
            self._trim_due_s = now_s + _TRIM_PAUSE_S
        # Last: what is attached to from here on ends the rest (`attached`).
        self.next_tick = await self._call(self._backend.tracer.next_tick, idle_until_s)
        return took_s

    async def glance(self) -> bool:
        """Between ticks, follow runtimes; returns whether the next tick is to come now."""
        idle_until_s = time.monotonic() + min(self.next_tick.idle_s, _IDLE_MOST_S)
        return await self._call(self._backend.tracer.glance, idle_until_s)

    async def oversee(self, idle_until_s: float = 0.0) -> None:
        """Enforce the policy, as a tick does, without reading anything of traced processes."""
        await self._call(self._backend.oversee, idle_until_s)
        self._backend.supervision.wake()

    async def _call(self, work: Callable[[], _Answer], idle_until_s: float) -> _Answer:
        """Call it in the worker, at idle priority until this time at most (`time.monotonic`)."""
        idle_s = idle_until_s - time.monotonic()
        return await (self._worker.call_idly(work, idle_s) if idle_s > 0 else self._worker.call(work))

    async def _ask(self, question: Callable[[ProcessQueries], _Answer]) -> _Answer:
        return await self._worker.call(lambda: question(self._backend.queries))

    async def _ask_with_names(self, pid: int, question: Callable[[ProcessQueries], _Answer]) -> _Answer:
        """Repeat a query until its names are known or take too long, without blocking the tracing thread."""
        deadline_s = time.monotonic() + _NAMES_LIMIT_S
        while True:
            answer, lacks_names = await self._ask(lambda queries: _answered(queries, pid, question))
            if not lacks_names or time.monotonic() > deadline_s:
                return answer
            self._backend.expect_questions()
            await asyncio.sleep(_NAMES_PAUSE_S)
            while time.monotonic() < deadline_s and await self._ask(lambda q: q.is_pending(pid)):
                await asyncio.sleep(_NAMES_PAUSE_S)


def _answered(
    queries: ProcessQueries, pid: int, question: Callable[[ProcessQueries], _Answer]
) -> tuple[_Answer, bool]:
    """An answer, and whether it lacks names that are still to come."""
    before = queries.lacked_total(pid)
    answer = question(queries)
    # A census leaves holes in the heap: 5 MB of 78 with a thousand call sites.
    c_heap.trim()
    return answer, queries.lacked_total(pid) != before
