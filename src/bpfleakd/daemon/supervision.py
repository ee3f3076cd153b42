"""Connects the supervisor to its event source and to its turns in the tracing thread.

It works on one process at a time, so requests are answered in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence

import structlog

from bpfleakd.config import Config, ProcessSource
from bpfleakd.daemon.worker import Worker
from bpfleakd.kernel.process_events import ProcessEvents
from bpfleakd.model.process_events import ProcessEventStats
from bpfleakd.model.supervision import SupervisedProcess
from bpfleakd.process.identity import read_labels
from bpfleakd.process.policy.rules import Subject
from bpfleakd.process.policy.subject import ProcSubject
from bpfleakd.process.processes import ProcessStat, Scanner, list_processes, read_stat
from bpfleakd.supervision.growth_watcher import GrowthWatcher
from bpfleakd.supervision.process_event_feed import ProcessEventFeed
from bpfleakd.supervision.supervisor import Supervisor
from bpfleakd.tracing.tracer import Tracer

log = structlog.get_logger()


class _ProcProcesses:
    """/proc as the supervisor's source of processes."""

    def all(self) -> Sequence[ProcessStat]:
        return list_processes()

    def stat(self, pid: int) -> ProcessStat | None:
        return read_stat(pid)

    def subject(self, stat: ProcessStat) -> Subject:
        return ProcSubject(stat)


class Supervision:
    """A running supervisor, from `start` to `stop`. Only the worker's thread may use `supervisor`.

    `attached` is called in the loop after an attach.
    """

    def __init__(
        self,
        config: Config,
        worker: Worker,
        tracer: Tracer,
        watcher: GrowthWatcher,
        loop: asyncio.AbstractEventLoop,
        attached: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._tracer = tracer
        self._attached = attached
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        events = config.process_events
        self._events = ProcessEventFeed(
            None if events.source is ProcessSource.SCAN else ProcessEvents,
            Scanner().scan,
            events.scan_s,
            lambda: loop.call_soon_threadsafe(self._woken.set),
        )
        policy = config.policy.policy()
        self._events.is_urgent = policy.attaches_at_once
        self.supervisor = Supervisor(
            policy,
            tracer,
            watcher,
            _ProcProcesses(),
            self._events.take,
            own_pid=os.getpid(),
            traced_max=config.limits.processes,
        )

    def start(self) -> None:
        """Find the existing processes, and follow all from now on."""
        self._events.start()
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop attaching to processes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._events.stop)

    async def use(self, config: Config) -> None:
        """Apply another policy."""
        policy = config.policy.policy()
        self._events.is_urgent = policy.attaches_at_once
        await self._prepare()
        await self._worker.call(lambda: self.supervisor.use(policy, time.monotonic_ns()))
        self._woken.set()

    def wake(self) -> None:
        """Give the supervisor a turn soon."""
        self._woken.set()

    def stats(self) -> ProcessEventStats:
        """How processes are noticed, and how many were missed or refused."""
        return ProcessEventStats(
            source=self._events.source,
            events_total=self._events.events_total,
            gaps_total=self._events.gaps_total,
            rescans_total=self.supervisor.rescans_total,
            short_lived_total=self.supervisor.short_lived_total,
            missed_total=dict(self.supervisor.missed_total),
            refused_total=self.supervisor.refused_total,
            by_state=self.supervisor.by_state(),
        )

    def processes(self) -> tuple[SupervisedProcess, ...]:
        """All processes of this host, with the supervisor's decisions."""
        return tuple(
            SupervisedProcess(
                pid=process.pid,
                comm=process.comm,
                mode=process.mode,
                state=process.state,
                rule=process.rule,
                reason=process.reason,
                labels=read_labels(process.pid),
            )
            for process in self.supervisor.processes()
            if process.id is not None
        )

    async def _prepare(self) -> None:
        if self._events.is_urgent:
            await self._worker.call(self._tracer.prepare)

    async def _work(self) -> None:
        await self._prepare()
        while True:
            self._woken.clear()
            due_ns, has_attached = await self._worker.call(self._turn)
            if has_attached:
                self._attached()
            if due_ns is None:
                await self._woken.wait()
                continue
            wait_s = (due_ns - time.monotonic_ns()) / 1e9
            if wait_s > 0:
                # Not `wait_for`: before Python 3.12, if woken at that moment, it swallows the cancellation by
                # `stop`.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._woken.wait()

    def _turn(self) -> tuple[int | None, bool]:
        """Run one turn; returns when the next is due, and whether a process was attached to."""
        now_ns, before = time.monotonic_ns(), self._tracer.traced_count()
        try:
            due_ns = self.supervisor.work(now_ns)
        except Exception:
            # A bug, or an attack by a process: the others continue.
            log.exception("supervisor.failed")
            due_ns = now_ns + 1_000_000_000
        return due_ns, self._tracer.traced_count() > before
