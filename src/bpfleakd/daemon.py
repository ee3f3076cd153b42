"""The daemon: everything put together, from start to stop.

One thread does all that touches processes and kernel (worker.py); the asyncio loop serves the API and keeps
the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from bpfleakd import __version__, errors
from bpfleakd.analysis.budget import BudgetLimits
from bpfleakd.analysis.growth_watch import GrowthOptions
from bpfleakd.analysis.look_schedule import LookOptions
from bpfleakd.analysis.memory_cap import MemoryCap
from bpfleakd.api.server import ApiServer
from bpfleakd.config import AttachMethod as Wanted
from bpfleakd.config import AutoConfig, Config
from bpfleakd.config import Walker as WantedWalker
from bpfleakd.export.guard_metrics import ExportedLimits
from bpfleakd.export.process_series import SeriesOptions
from bpfleakd.export.prometheus import PrometheusExporter
from bpfleakd.kernel.loader import Capacities
from bpfleakd.kernel.price import measure_price
from bpfleakd.kernel.programs import AttachMethod, WalkerKind
from bpfleakd.kernel.session import KernelSession
from bpfleakd.logs import configure_logging, get_logger
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.daemon import DaemonStats, GuardStats
from bpfleakd.model.difference import DiffReport
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.history import SavedHistory
from bpfleakd.model.kept import KeptReport, SavedReport
from bpfleakd.model.metrics import MetricsSnapshot
from bpfleakd.model.process import ProcessId, ProcessState, TracedProcess, TracingMode
from bpfleakd.model.profile import HeapProfile
from bpfleakd.model.report import LeakReport, SortKey
from bpfleakd.model.scan import ScanReport
from bpfleakd.model.space import AddressSpaceReport
from bpfleakd.model.supervision import SupervisedProcess
from bpfleakd.model.watching import WatchedProcess
from bpfleakd.monitor.attach import GONE, Attacher, Attachment
from bpfleakd.monitor.auto import AutoOptions, GrowthWatcher
from bpfleakd.monitor.governing import LEVELS, Governing
from bpfleakd.monitor.guard import Guard
from bpfleakd.monitor.monitor import Monitor
from bpfleakd.monitor.report import Reporter
from bpfleakd.monitor.sampling import SamplingOptions
from bpfleakd.monitor.scans import PendingScan, ScanOptions
from bpfleakd.monitor.supervisor import Supervisor
from bpfleakd.monitor.unwinding import Unwinding
from bpfleakd.service_manager import ServiceManager, status_line, systemd_directory
from bpfleakd.state.reports import ReportStore
from bpfleakd.supervision import Supervision
from bpfleakd.suppressions import read_suppressions
from bpfleakd.symbols.demangle import Demangler
from bpfleakd.symbols.module_cache import ModuleCache
from bpfleakd.symbols.perf_map import PerfMap
from bpfleakd.symbols.source_lines import SourceLines
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.target.mappings import mapped_file, same_file
from bpfleakd.target.memory_sampler import own_resident_bytes
from bpfleakd.target.process import read_process
from bpfleakd.worker import Worker

__all__ = ["Daemon", "run"]

log = get_logger()

_M_MMAP_THRESHOLD = -3  # malloc.h


def run(config: Config, reload: Callable[[], Config], *, keep_on_stop: bool = False) -> int:
    """Run in the foreground until SIGTERM or SIGINT; returns the exit code.

    `reload` reads the configuration again, on SIGHUP. `keep_on_stop`: after SIGTERM probes and tables go on,
    for the next daemon. Raises BpfleakdError if the daemon cannot start.
    """
    configure_logging(config.log)
    # The watchdog ends us by SIGABRT: the log then has where every thread was.
    faulthandler.enable()
    _give_memory_back()
    asyncio.run(Daemon(config, reload, keep_on_stop=keep_on_stop).serve())
    return 0


def _give_memory_back() -> None:
    """Keep glibc from raising the size from which blocks are mapped by themselves, and freed for good.

    It raises it to that of any block freed, and then the arrays of one large table stay in the heap: 11 MB
    of 66 with a process of 26 files (mallopt(3), M_MMAP_THRESHOLD).
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 128 << 10)


class Daemon:
    """One run of the daemon."""

    def __init__(self, config: Config, reload: Callable[[], Config], *, keep_on_stop: bool) -> None:
        self._config = config
        self._keep = keep_on_stop
        self._load_config = reload
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self._manager = ServiceManager.from_environment()

    async def serve(self) -> None:
        """Start, work until told to stop, leave nothing behind (or all of it to the next daemon)."""
        self._install_signal_handlers()
        async with contextlib.AsyncExitStack() as stack:
            worker = stack.enter_context(Worker())
            service = _Service(worker, self._config)
            exporter = _exporter(self._config, service.snapshot)
            api = self._api(service, exporter)
            await api.start()
            stack.push_async_callback(api.stop)
            self._manager.starting("loading the BPF programs")
            await service.start()
            stack.push_async_callback(lambda: service.stop(keep=self._keep))
            self._manager.ready(status_line(service.snapshot))
            await self._tick_until_stopped(service, exporter)
            self._manager.stopping("detaching")
            log.info("daemon.stopping")

    def _install_signal_handlers(self) -> None:
        # A handler only records; the loop acts.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)

    def _interrupt(self) -> None:
        # Who types Ctrl-C has finished with it.
        self._keep = False
        self._stop.set()

    def _api(self, service: _Service, exporter: PrometheusExporter) -> ApiServer:
        metrics = self._config.metrics
        return ApiServer(
            service,
            exporter.expose,
            socket_path=self._config.socket,
            socket_group=self._config.socket_group,
            tcp_address=metrics.address if metrics.enabled else None,
            tcp_port=metrics.port,
        )

    async def _tick_until_stopped(self, service: _Service, exporter: PrometheusExporter) -> None:
        while not self._stop.is_set():
            try:
                took_s = await service.tick()
                exporter.update(service.snapshot, time.monotonic(), took_s)
                self._manager.tick_ended(status_line(service.snapshot))
            except Exception:
                # A bug of ours, or what a target did to us: the other processes are traced on.
                log.exception("tick.failed")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self._config.tick_s)
            if self._reload.is_set():
                self._reload.clear()
                self._manager.reloading()
                await self._reload_config(service)
                self._manager.ready(status_line(service.snapshot))

    async def _reload_config(self, service: _Service) -> None:
        """Take over what can be changed while running; say what cannot."""
        try:
            new = self._load_config()
        except errors.ConfigError as error:
            log.error("config.rejected", reason=error.message, hint=error.hint)
            return
        old, self._config = self._config, new
        configure_logging(new.log)
        fixed = [
            name
            for name in (
                "socket",
                "socket_group",
                "bpffs_dir",
                "attach_method",
                "walker",
                "process_events",
                "metrics",
                "limits",
                "history",
                "sampling",
                "auto",
                "budget",
                "cache_dir",
                "unattended_s",
                "state",
            )
            if getattr(old, name) != getattr(new, name)
        ]
        if fixed:
            log.warning("config.needs-restart", keys=fixed)
        log.info("config.reloaded", tick_s=new.tick_s)
        await service.use(new)


class _Service:
    """The monitor in its thread, as the API asks for it (api.service.Service)."""

    def __init__(self, worker: Worker, config: Config) -> None:
        self._worker = worker
        self._config = config
        self._suppressions = read_suppressions(config.suppressions)
        self._kernel: KernelSession | None = None
        self._modules = ModuleCache()
        self._demangler = Demangler()
        self._lines = SourceLines()
        self._monitor_or_none: Monitor | None = None
        self._reports: ReportStore | None = None
        self._watcher = GrowthWatcher(_auto_options(config.auto))
        self._scanning = asyncio.Lock()
        self._scan: PendingScan | None = None
        self._supervision: Supervision | None = None
        self._guard: Guard | None = None
        # What the metrics show, as of the last tick: a scrape never waits for the worker.
        self.snapshot = MetricsSnapshot(DaemonStats(__version__, "none", 0.0, 0, 0.0, 0, 0), (), {})

    @property
    def _cache_directory(self) -> Path | None:
        # The second is what systemd makes (CacheDirectory=).
        return self._config.cache_dir or systemd_directory("CACHE_DIRECTORY")

    async def start(self) -> None:
        """Load the programs. Questions that come meanwhile wait their turn in the worker's queue."""
        loop = asyncio.get_running_loop()
        await self._worker.call(lambda: self._open(loop))
        self._started.start()

    async def stop(self, *, keep: bool) -> None:
        """Detach from everything and unload, or `keep` all for the next daemon."""
        if self._scan is not None:
            self._scan.cancel()
        if self._supervision is not None:
            await self._supervision.stop()
        await self._worker.call(self._close, keep=keep)

    async def attach(self, pid: int, mode: TracingMode = TracingMode.EXACT) -> TracedProcess:
        return await self._worker.call(lambda: self._supervisor.attach(pid, time.monotonic_ns(), mode))

    async def detach(self, pid: int) -> TracedProcess:
        return await self._worker.call(lambda: self._supervisor.detach(pid, time.monotonic_ns()))

    async def processes(self) -> tuple[TracedProcess, ...]:
        return await self._worker.call(lambda: self._annotated(self._monitor.overview.processes()))

    async def watched(self) -> tuple[WatchedProcess, ...]:
        return await self._worker.call(self._watcher.processes)

    async def supervised(self) -> tuple[SupervisedProcess, ...]:
        return await self._worker.call(lambda: self._started.processes())

    async def use(self, config: Config) -> None:
        """Take over what can be changed while running. Files of suppressions are read again."""
        try:
            suppressions = await asyncio.to_thread(read_suppressions, config.suppressions)
        except errors.ConfigError as error:
            log.error("suppressions.rejected", reason=error.message, hint=error.hint)
        else:
            self._suppressions = suppressions
            await self._worker.call(lambda: self._monitor.use_suppressions(suppressions))
        await self._started.use(config)

    async def report(
        self, pid: int, *, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> LeakReport:
        return await self._worker.call(
            lambda: self._monitor.questions.report(pid, limit=limit, sort=sort, suppress=suppress)
        )

    async def groups(
        self, pid: int, *, by: GroupKey, limit: int | None, sort: SortKey, suppress: bool = True
    ) -> GroupedReport:
        return await self._worker.call(
            lambda: self._monitor.questions.groups(pid, by=by, limit=limit, sort=sort, suppress=suppress)
        )

    async def profile(self, pid: int) -> HeapProfile:
        return await self._worker.call(lambda: self._monitor.questions.profile(pid))

    async def blocks(
        self, pid: int, *, site: str | None, older_than_s: float, limit: int, suppress: bool = True
    ) -> BlocksReport:
        wanted = {"site": site, "older_than_s": older_than_s, "limit": limit, "suppress": suppress}
        return await self._worker.call(self._monitor.questions.blocks, pid, **wanted)

    async def scan(
        self, pid: int, *, older_than_s: float, stop: bool, stop_limit_s: float, limit: int
    ) -> ScanReport:
        # One at a time: each may take as much memory as the daemon itself several times over.
        async with self._scanning:
            options = ScanOptions(older_than_s, stop, stop_limit_s, limit, self._suppressions)
            self._scan = await self._worker.call(lambda: self._monitor.questions.begin_scan(pid, options))
            try:
                reply = await asyncio.to_thread(self._scan.run)
                return await self._worker.call(self._monitor.questions.finish_scan, self._scan, reply)
            finally:
                self._scan = None

    async def history(self, pid: int, *, limit: int | None) -> SavedHistory:
        return await self._worker.call(lambda: self._monitor.questions.history(pid, limit=limit))

    async def compare(self, pid: int, *, from_ago_s: float | None, to_ago_s: float) -> DiffReport:
        return await self._worker.call(
            lambda: self._monitor.questions.compare(pid, from_ago_s=from_ago_s, to_ago_s=to_ago_s)
        )

    async def address_space(self, pid: int) -> AddressSpaceReport:
        return await self._worker.call(lambda: self._monitor.questions.address_space(pid))

    async def reports(self, pid: int | None, *, limit: int) -> tuple[KeptReport, ...]:
        return await self._worker.call(lambda: self._kept_reports.newest(pid, limit))

    async def kept_report(self, number: int) -> SavedReport:
        return await self._worker.call(lambda: self._kept_reports.get(number))

    async def stats(self) -> DaemonStats:
        return await self._worker.call(self._stats)

    async def tick(self) -> float:
        """One tick; returns how many seconds reading the counters took."""
        took_s = await self._worker.call(self._monitor.tick)
        await self._worker.call(lambda: self._supervise(time.monotonic_ns()))
        self._started.wake()
        self.snapshot = await self._worker.call(self._snapshot)
        return took_s

    def _stats(self) -> DaemonStats:
        return replace(self._monitor.overview.stats(), life=self._started.stats())

    def _supervise(self, now_ns: int) -> None:
        if self._guard is not None:
            self._guard.tick(now_ns)
        self._supervisor.tick(now_ns)

    def _annotated(self, rows: tuple[TracedProcess, ...]) -> tuple[TracedProcess, ...]:
        return self._guard.annotated(rows) if self._guard is not None else rows

    def _snapshot(self) -> MetricsSnapshot:
        snapshot = self._monitor.overview.snapshot()
        return replace(
            snapshot,
            daemon=self._stats(),
            processes=self._annotated(snapshot.processes),
            watch=self._watcher.summary(),
            guard=self._guard.stats() if self._guard is not None else GuardStats(),
        )

    @property
    def _started(self) -> Supervision:
        if self._supervision is None:
            raise errors.DaemonUnreachable("the daemon is still starting", "try again in a second")
        return self._supervision

    @property
    def _supervisor(self) -> Supervisor:
        return self._started.supervisor

    @property
    def _monitor(self) -> Monitor:
        if self._monitor_or_none is None:
            raise _still_starting()
        return self._monitor_or_none

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self._config
        wanted = config.attach_method
        limits = config.limits
        kernel = KernelSession.open(
            config.bpffs_dir,
            Capacities(limits.processes, limits.sites, limits.stacks, limits.threads, limits.process_sites),
            None if wanted is Wanted.AUTO else AttachMethod(wanted.value),
            None if config.walker is WantedWalker.AUTO else WalkerKind(config.walker.value),
            self._cache_directory,
        )
        self._kernel = kernel
        try:
            self._begin(kernel, loop)
        except BaseException:
            kernel.close(keep=kernel.adopted)
            self._kernel = None
            raise

    def _begin(self, kernel: KernelSession, loop: asyncio.AbstractEventLoop) -> None:
        config = self._config
        state = config.state
        self._reports = ReportStore(state.dir, max_bytes=state.max_bytes, max_age_s=state.max_age_s)
        log.info(
            "kernel.adopted" if kernel.adopted else "kernel.loaded",
            method=kernel.method,
            walker=kernel.walker,
            passed_over=kernel.passed_over,
            was_compiled=kernel.was_compiled,
        )
        unwinding = Unwinding(kernel.maps.unwind, kernel.pins.record("unwinding"), self._cache_directory)
        self._monitor_or_none = Monitor(
            kernel.maps,
            Attacher(kernel.maps, kernel.linker, unwinding, kernel.pins, config.limits.live_blocks),
            unwinding,
            kernel.watch_address_spaces,
            Reporter(config.history.window_s, kernel.method),
            self._symbolizer_of,
            attach_method=kernel.method,
            # More than are exported, so that one that gives way still has figures.
            top_sites=2 * config.metrics.top_sites,
            unattended_s=config.unattended_s,
            keep_report=self._keep_report,
            leak_after_s=config.history.leak_after_s,
            sampling=SamplingOptions(
                config.sampling.target_events_per_s,
                config.sampling.interval_bytes,
            ),
            suppressions=self._suppressions,
        )
        anew = [*kernel.left_behind, *self._monitor.adopt(kernel.pins.processes())]
        self._attach_anew(anew)
        self._supervision = Supervision(config, self._worker, self._monitor, self._watcher, loop)
        traced = [
            row.process.pid
            for row in self._monitor.overview.processes()
            if row.process.state == ProcessState.TRACED
        ]
        self._supervision.supervisor.adopt(traced)
        self._guard = Guard(
            Governing(self._monitor, self._supervisor, [self._modules.drop_symbols]),
            BudgetLimits(config.budget.process_percent, config.budget.host_percent),
            MemoryCap(config.limits.daemon_rss_bytes),
            levels=LEVELS,
            resident_bytes=own_resident_bytes,
            measure_price=lambda: measure_price(kernel.linker, kernel.maps),
        )

    def _keep_report(self, id_: ProcessId, report: LeakReport) -> None:
        self._kept_reports.keep(id_, report, time.time())

    @property
    def _kept_reports(self) -> ReportStore:
        if self._reports is None:
            raise _still_starting()
        return self._reports

    def _attach_anew(self, processes: Iterable[ProcessId]) -> None:
        """Attach to those that an earlier daemon traced, but whose tables could not be taken over."""
        for id_ in processes:
            try:
                if read_process(id_.pid).id == id_:
                    self._monitor.attach(id_.pid)
            except errors.BpfleakdError as error:
                log.warning("process.not-attached", pid=id_.pid, reason=error.message, hint=error.hint)

    def _close(self, *, keep: bool) -> None:
        if self._monitor_or_none is not None:
            if keep:
                self._monitor_or_none.leave()
            else:
                self._monitor_or_none.close()
        if self._kernel is not None:
            self._kernel.close(keep=keep)
        if self._reports is not None:
            self._reports.close()

    def _symbolizer_of(self, attachment: Attachment) -> Symbolizer:
        if attachment.pidfd == GONE:
            return self._symbolizer_of_files(attachment)
        process = attachment.process
        pid = process.id.pid
        root = Path(f"/proc/{pid}/root")
        symbolizer = Symbolizer(
            pid,
            lambda mapping: mapped_file(pid, mapping),
            self._modules,
            perf_map=PerfMap(root / "tmp" / f"perf-{process.namespace_pid}.map", process.uid),
            demangler=self._demangler,
            lines=self._lines,
            root=root,
        )
        symbolizer.update_mappings(attachment.mappings)
        symbolizer.hold_files(attachment.mappings)
        return symbolizer

    def _symbolizer_of_files(self, attachment: Attachment) -> Symbolizer:
        """Of a process that has ended: its files, where they are still what was mapped."""
        pid = attachment.process.id.pid
        symbolizer = Symbolizer(pid, same_file, self._modules, demangler=self._demangler, lines=self._lines)
        symbolizer.update_mappings(attachment.mappings)
        return symbolizer


def _still_starting() -> errors.DaemonUnreachable:
    return errors.DaemonUnreachable("the daemon is still starting", "try again in a second")


def _exporter(config: Config, snapshot: MetricsSnapshot) -> PrometheusExporter:
    metrics = config.metrics
    options = SeriesOptions(metrics.labels, metrics.top_sites, metrics.max_series, metrics.linger_s)
    tables = msgspec.structs.asdict(config.limits)
    memory_bytes = tables.pop("daemon_rss_bytes")
    budget_percent = {"process": config.budget.process_percent, "host": config.budget.host_percent}
    return PrometheusExporter(snapshot, options, limits=ExportedLimits(tables, budget_percent, memory_bytes))


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
