"""The traced side of the daemon: programs, tracer, queries, supervision, overhead guard and stored reports.

It runs in the worker's thread (worker.py); other threads may only read its `snapshot`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import structlog
from msgspec.structs import replace

from bpfleakd import __version__, errors
from bpfleakd.analysis.callers import ChargeRules
from bpfleakd.analysis.suppressions import Suppressions
from bpfleakd.config import AutoConfig, Config
from bpfleakd.daemon.loading import cache_directory, load_options
from bpfleakd.daemon.report_keeper import ReportKeeper
from bpfleakd.daemon.supervision import Supervision
from bpfleakd.daemon.symbolizers import Symbolizers
from bpfleakd.daemon.worker import Worker
from bpfleakd.kernel.oom_events import OomEvents
from bpfleakd.kernel.pins import ProcessPins
from bpfleakd.kernel.probes import points
from bpfleakd.kernel.probes.cost import measure_price
from bpfleakd.kernel.programs import probes_sites, unexpected_fallbacks
from bpfleakd.kernel.session import KernelSession
from bpfleakd.model.daemon import DaemonStats, GuardStats
from bpfleakd.model.metrics import MetricsSnapshot
from bpfleakd.model.process import ProcessId, ProcessRow, ProcessState, TracingMode, TracingRequest
from bpfleakd.process.memory_sampler import own_resident_bytes
from bpfleakd.queries.oom_kills import OomKills
from bpfleakd.queries.overview import Overview
from bpfleakd.queries.process_queries import ProcessQueries
from bpfleakd.queries.report import Reporter
from bpfleakd.queries.verdict_engine import VerdictEngine
from bpfleakd.runtimes.detection import detectors
from bpfleakd.runtimes.dotnet import line_jobs, stream_jobs
from bpfleakd.runtimes.jvm import recording_jobs
from bpfleakd.runtimes.v8 import inspector_jobs
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.state.reports import ReportStore
from bpfleakd.supervision.budget import BudgetLimits
from bpfleakd.supervision.descriptor_watch import DescriptorWatch
from bpfleakd.supervision.growth_watch import GrowthOptions
from bpfleakd.supervision.growth_watcher import AutoOptions, GrowthWatcher
from bpfleakd.supervision.look_schedule import LookOptions
from bpfleakd.supervision.overhead_guard import MemoryCap, OverheadGuard
from bpfleakd.supervision.supervisor import Supervisor
from bpfleakd.supervision.tracing_control import LEVELS, TracingControl
from bpfleakd.suppressions import read_suppressions
from bpfleakd.symbols import naming_jobs
from bpfleakd.tracing.attaching.attach import Attacher, AttachWait
from bpfleakd.tracing.attaching.discovery import Discovery
from bpfleakd.tracing.checkpoint import read_request
from bpfleakd.tracing.descriptor_recording import DescriptorRecording
from bpfleakd.tracing.go.profile_switch import turn_off_profile
from bpfleakd.tracing.lifetime.beginning import TracingOptions
from bpfleakd.tracing.sampling.intervals import SamplingOptions
from bpfleakd.tracing.tracer import Tracer
from bpfleakd.tracing.unwinding import Unwinding
from bpfleakd.unwind import table_builder
from bpfleakd.unwind.table_builder import TableBuilder

log = structlog.get_logger()

_Part = TypeVar("_Part")

# The modules with the helpers' jobs.
_JOBS = (naming_jobs, points, table_builder, stream_jobs, line_jobs, inspector_jobs, recording_jobs)

# The share of the time for naming the sites of the metrics, and their maximum age.
_SNAPSHOT_SHARE = 0.001
_SNAPSHOT_PAUSE_NS = 10_000_000_000


class Backend:
    """Opened once, closed once. Before and after, every request raises DaemonUnreachable."""

    def __init__(self, config: Config, worker: Worker, attached: Callable[[], None]) -> None:
        self._config = config
        self._worker = worker
        self._attached = attached
        self.suppressions = read_suppressions(config.suppressions)
        options = _auto_options(config.auto)
        counted = DescriptorWatch(options.growth) if config.descriptors.watched else None
        self.watcher = GrowthWatcher(options, descriptors=counted)
        self._helpers = Helpers([module.__name__ for module in _JOBS])
        self._symbolizers = Symbolizers(self._helpers, config.limits.names_s)
        self._kernel: KernelSession | None = None
        self._tracer: Tracer | None = None
        self._queries: ProcessQueries | None = None
        self._overview: Overview | None = None
        self._reports: ReportStore | None = None
        self._supervision: Supervision | None = None
        self._guard: OverheadGuard | None = None
        self._oom_events: OomEvents | None = None
        self._oom: OomKills | None = None
        # The content of the metrics as of a recent tick: a scrape never waits for the worker.
        self.snapshot = MetricsSnapshot(DaemonStats(__version__, "none", 0.0, 0, 0.0, 0, 0), (), {})
        self._snapshot_due_ns = 0
        self._snapshot_traced = 0
        self._is_closed = False

    @property
    def tracer(self) -> Tracer:
        """The tracer."""
        return self._opened(self._tracer)

    @property
    def queries(self) -> ProcessQueries:
        """Queries about a process."""
        return self._opened(self._queries)

    @property
    def overview(self) -> Overview:
        """A summary of all processes."""
        return self._opened(self._overview)

    @property
    def reports(self) -> ReportStore:
        """The last reports of ended processes."""
        return self._opened(self._reports)

    @property
    def supervision(self) -> Supervision:
        """The part that decides which processes are traced."""
        return self._opened(self._supervision)

    @property
    def is_supervised(self) -> bool:
        """Whether there is a supervision to stop."""
        return self._supervision is not None

    @property
    def supervisor(self) -> Supervisor:
        """The supervision's decisions."""
        return self.supervision.supervisor

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Load the programs, and adopt an earlier daemon's processes. `loop` provides the time."""
        config = self._config
        replaced: dict[ProcessId, TracingRequest] = {}
        kernel = KernelSession.open(
            config.bpffs_dir,
            load_options(config),
            lambda pins: replaced.update({pins.id: _replaced(pins)}),
        )
        self._kernel = kernel
        try:
            self._begin(kernel, loop, replaced)
        except BaseException:
            kernel.close(keep=kernel.adopted)
            self._kernel = None
            raise
        self.expect_questions()

    def expect_questions(self) -> None:
        """Start the helpers at usual priority, from any thread: somebody waits for names, or will soon."""
        self._helpers.prepare_soon()

    def attach(
        self, pid: int, mode: TracingMode | None, wait: AttachWait, *, enable_profile: bool = False
    ) -> ProcessRow:
        """Trace a process at a user's request. Raises the errors of Tracer.start.

        With `mode` None: INSIDE if a sampler inside the process announces its blocks, else EXACT.
        """
        now_ns = time.monotonic_ns()
        return self.queries.row(
            self.supervisor.attach(pid, now_ns, mode, wait, enable_profile=enable_profile)
        )

    def detach(self, pid: int) -> ProcessRow:
        """Stop tracing a process. Raises NotAttached."""
        return self.queries.row(self.supervisor.detach(pid, time.monotonic_ns()))

    def close(self, *, keep: bool) -> None:
        """Detach from everything and unload, or `keep` everything for the next daemon."""
        self._is_closed = True
        if self._tracer is not None:
            if keep:
                self._tracer.leave()
            else:
                self._tracer.close()
        self._symbolizers.close()
        self._helpers.close()
        if self._kernel is not None:
            self._kernel.close(keep=keep)
        if self._reports is not None:
            self._reports.close()
        if self._oom_events is not None:
            self._oom_events.close()

    def use_suppressions(self, suppressions: Suppressions) -> None:
        """Use these suppressions from now on."""
        self.suppressions = suppressions
        self.tracer.use_suppressions(suppressions)

    def keep_budget(self) -> None:
        """Enforce the budget, after a tick of the tracer."""
        if self._guard is not None:
            self._guard.tick(time.monotonic_ns())

    def oversee(self) -> None:
        """Enforce the policy."""
        self.supervisor.tick(time.monotonic_ns())

    def processes(self) -> tuple[ProcessRow, ...]:
        """Every traced or recently ended process, with the cost of tracing it."""
        return self._annotated(self.overview.processes())

    def stats(self) -> DaemonStats:
        """The daemon's own figures."""
        kills = self._oom.total if self._oom is not None else 0
        return replace(self.overview.stats(), process_events=self.supervision.stats(), oom_kills_total=kills)

    def refresh_snapshot(self) -> None:
        """Refresh the metrics snapshot: after every tick, or less often if that takes long.

        Scrapers come every few seconds at most, but new and ended processes show at once.
        """
        began_ns, traced = time.monotonic_ns(), self.tracer.traced_count()
        if began_ns < self._snapshot_due_ns and traced == self._snapshot_traced:
            return
        self._take_snapshot()
        took_ns = time.monotonic_ns() - began_ns
        self._snapshot_due_ns = began_ns + min(round(took_ns / _SNAPSHOT_SHARE), _SNAPSHOT_PAUSE_NS)
        self._snapshot_traced = traced

    def _take_snapshot(self) -> None:
        snapshot = self.overview.snapshot()
        self.snapshot = replace(
            snapshot,
            daemon=self.stats(),
            processes=self._annotated(snapshot.processes),
            watch=self.watcher.summary(),
            guard=self._guard.stats() if self._guard is not None else GuardStats(),
            bills=self._oom.bills() if self._oom is not None else {},
        )

    def _annotated(self, rows: tuple[ProcessRow, ...]) -> tuple[ProcessRow, ...]:
        return self._guard.annotated(rows) if self._guard is not None else rows

    def _opened(self, part: _Part | None) -> _Part:
        if self._is_closed:
            raise errors.DaemonUnreachable("the daemon is stopping", "start it again to continue")
        if part is None:
            raise errors.DaemonUnreachable("the daemon is still starting", "try again in a second")
        return part

    def _begin(
        self,
        kernel: KernelSession,
        loop: asyncio.AbstractEventLoop,
        replaced: Mapping[ProcessId, TracingRequest],
    ) -> None:
        config = self._config
        state = config.state
        self._reports = ReportStore(state.dir, max_bytes=state.max_bytes, max_age_s=state.max_age_s)
        log.info(
            "kernel.adopted" if kernel.adopted else "kernel.loaded",
            method=kernel.method,
            walker=kernel.walker,
            syscalls=kernel.syscalls,
            passed_over=kernel.passed_over,
            was_compiled=kernel.was_compiled,
        )
        for name, reason in unexpected_fallbacks(kernel.passed_over, os.uname().release).items():
            log.warning("kernel.fallback", passed_over=name, reason=reason)
        self._tracer = tracer = self._new_tracer(kernel)
        self._observe(kernel, tracer, ReportKeeper(self._reports))
        tracer.adopt(kernel.pins.processes(), replaced)
        self._supervision = Supervision(
            config, self._worker, self._tracer, self.watcher, loop, self._attached
        )
        now_ns = time.monotonic_ns()
        began_ns = {
            row.process.pid: now_ns - round(row.process.attached_s * 1e9)
            for row in self.overview.processes()
            if row.process.state == ProcessState.TRACED
        }
        self._supervision.supervisor.adopt(began_ns, now_ns)
        self._guard = OverheadGuard(
            TracingControl(self._tracer, self.supervisor, []),
            BudgetLimits(config.budget.process_percent, config.budget.host_percent),
            MemoryCap(config.limits.daemon_rss_bytes),
            levels=LEVELS,
            resident_bytes=own_resident_bytes,
            measure_price=lambda: measure_price(kernel.linker, kernel.maps),
        )

    def _new_tracer(self, kernel: KernelSession) -> Tracer:
        config = self._config
        unwinding = Unwinding(
            kernel.maps.unwind,
            TableBuilder(self._helpers, cache_directory(config)),
            kernel.pins.record("unwinding"),
        )
        return Tracer(
            kernel.maps,
            Attacher(
                kernel.maps,
                kernel.linker,
                unwinding,
                kernel.pins,
                Discovery(self._helpers, cache_directory(config)),
                config.limits.live_blocks,
                uses_sites=probes_sites(kernel.walker, kernel.syscalls),
            ),
            unwinding,
            kernel.watch_address_spaces,
            self._symbolizers.of,
            TracingOptions(
                SamplingOptions(config.sampling.target_events_per_s, config.sampling.interval_bytes),
                load_options(config).capacities,
                config.unattended_s,
                config.history.leak_after_s,
                self.suppressions,
                ChargeRules(config.blame.skip, config.blame.stop),
                detectors(self._helpers),
            ),
        )

    def _observe(self, kernel: KernelSession, tracer: Tracer, keeper: ReportKeeper) -> None:
        """Create the queries and the report keeper, which observe the tracer."""
        config = self._config
        reporter = Reporter(config.history.window_s, kernel.method)
        engine = VerdictEngine(reporter, tracer)
        self._queries = ProcessQueries(tracer, engine, reporter)
        # More sites than are exported, so one that drops out still has figures.
        top_sites = 2 * config.metrics.top_sites
        self._overview = Overview(tracer, reporter, attach_method=kernel.method, top_sites=top_sites)
        self._oom_events = _oom_events()
        self._oom = oom = OomKills(self._oom_events, tracer, self.watcher.last_reading, keeper.keep)
        self.watcher.noticed = oom.note_reading
        descriptors = DescriptorRecording(
            kernel.maps, kernel.watch_descriptors, config.descriptors.call_sites
        )
        # OOM victims are marked before their last report is made.
        tracer.observers += [oom, descriptors, engine, self._queries, self._overview, keeper]


def _oom_events() -> OomEvents | None:
    """The victims of the OOM killer; None if the kernel does not report them."""
    try:
        return OomEvents()
    except errors.BpfleakdError as error:
        log.info("oom.not-watched", reason=error.message, hint=error.hint)
        return None


def _auto_options(config: AutoConfig) -> AutoOptions:
    return AutoOptions(
        interval_s=config.interval_s,
        mode=TracingMode(config.mode.value),
        window_s=config.window_s,
        growth=GrowthOptions(
            window_s=config.growth_window_s,
            min_bytes=config.growth_min_bytes,
            min_share=config.growth_min_share,
            warmup_s=config.warmup_s,
        ),
        looks=LookOptions(
            windows=config.windows,
            pause_s=config.pause_s,
            pause_max_s=config.pause_max_s,
            calm_s=config.growth_window_s,
        ),
    )


def _replaced(pins: ProcessPins) -> TracingRequest:
    """Undo another version's changes to a process; returns how it was traced."""
    turn_off_profile(pins)
    return read_request(pins)
