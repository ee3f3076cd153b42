"""The daemon as a whole, from start to stop.

One thread does everything that involves processes and the kernel (worker.py); the asyncio loop serves the API
and keeps the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import math
import signal
import sys
import time
from collections.abc import Callable

import msgspec
import structlog

from bpfleakd import errors
from bpfleakd.api.server import ApiServer
from bpfleakd.config import Config, contradictions, reloaded
from bpfleakd.daemon import c_heap
from bpfleakd.daemon.logs import configure_logging
from bpfleakd.daemon.service import DaemonService
from bpfleakd.daemon.service_manager import ServiceManager, status_line
from bpfleakd.daemon.worker import Worker
from bpfleakd.export.process_series import SeriesOptions
from bpfleakd.export.prometheus import PrometheusExporter
from bpfleakd.export.supervision_metrics import ExportedLimits
from bpfleakd.model.metrics import MetricsSnapshot
from bpfleakd.process.reading.apart import read_apart
from bpfleakd.tracing.lifetime.tick_pace import NextTick

log = structlog.get_logger()

# How long the loop waits for its turn while other threads compute, per step; Python's default is 5 ms.
_SWITCH_INTERVAL_S = 0.001

# While nothing needs prompt readings, traced processes are read as rarely as this, and one tick in so many is
# enough.
_LONGEST_UNREAD_S = 30.0
_LONGEST_REST_TICKS = 5


def run(config: Config, reload: Callable[[], Config], *, keep_on_stop: bool = False) -> int:
    """Run in the foreground until SIGTERM or SIGINT; returns the exit code.

    `reload` reads the configuration again, on SIGHUP. With `keep_on_stop`, probes and tables remain after
    SIGTERM for the next daemon. Raises BpfleakdError if the daemon cannot start.
    """
    configure_logging(config.log)
    # The watchdog ends the daemon by SIGABRT: the log then shows the stack of every thread.
    faulthandler.enable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    c_heap.keep_small()
    asyncio.run(Daemon(config, reload, keep_on_stop=keep_on_stop).serve())
    return 0


class Daemon:
    """One run of the daemon."""

    def __init__(self, config: Config, reload: Callable[[], Config], *, keep_on_stop: bool) -> None:
        self._config = config
        self._keep = keep_on_stop
        self._load_config = reload
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        # Set when the next tick is due, whatever the time.
        self._tick_due = asyncio.Event()
        self._rests_long = False
        self._reading_due_s = 0.0
        self._manager = ServiceManager.from_environment()

    async def serve(self) -> None:
        """Start, work until a signal, remove everything (or leave everything to the next daemon)."""
        self._install_signal_handlers()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(read_apart())
            worker = stack.enter_context(Worker())
            service = DaemonService(worker, self._config, attached=self._end_idle_rest)
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
        # A signal handler only records the signal; the loop acts.
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._note, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGHUP, self._note, self._reload)

    def _end_idle_rest(self) -> None:
        self._reading_due_s = 0.0
        if self._rests_long:
            self._tick_due.set()

    def _note(self, event: asyncio.Event) -> None:
        event.set()
        self._tick_due.set()

    def _interrupt(self) -> None:
        # A user who presses Ctrl-C no longer needs the state.
        self._keep = False
        self._note(self._stop)

    def _api(self, service: DaemonService, exporter: PrometheusExporter) -> ApiServer:
        metrics = self._config.metrics
        return ApiServer(
            service,
            exporter.expose,
            socket_path=self._config.socket,
            socket_group=self._config.socket_group,
            tcp=(metrics.address, metrics.port) if metrics.enabled else None,
            details=metrics.details,
        )

    async def _tick_until_stopped(self, service: DaemonService, exporter: PrometheusExporter) -> None:
        while not self._stop.is_set():
            try:
                if self._is_reading_due() or (service.next_tick.needs_glances and await service.glance()):
                    await self._read(service, exporter)
                else:
                    await service.oversee()
                self._manager.tick_ended(status_line(service.snapshot))
            except Exception:
                # A bug, or an attack by a target: the other processes continue.
                log.exception("tick.failed")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._tick_due.wait(), self._rest_s(service.next_tick))
            self._rests_long = False
            self._tick_due.clear()
            if self._reload.is_set():
                self._reload.clear()
                self._manager.reloading()
                await self._reload_config(service)
                self._reading_due_s = 0.0
                self._manager.ready(status_line(service.snapshot))

    async def _read(self, service: DaemonService, exporter: PrometheusExporter) -> None:
        """Read the traced processes, and find when they need to be read again."""
        self._reading_due_s = 0.0
        took_s = await service.tick()
        exporter.update(service.snapshot, time.monotonic(), took_s)
        wait_s = service.next_tick.wait_s
        if wait_s < math.inf:
            # A reading keeps the programs recording.
            wait_s = min(wait_s, _LONGEST_UNREAD_S, self._config.unattended_s / 2)
        else:
            # Nothing is traced, and a reading is nothing.
            wait_s = _LONGEST_REST_TICKS * self._config.tick_s
        self._reading_due_s = time.monotonic() + wait_s

    def _is_reading_due(self) -> bool:
        # Ticks are not quite on time.
        return time.monotonic() >= self._reading_due_s - self._config.tick_s / 2

    def _rest_s(self, next_tick: NextTick) -> float:
        """How long to wait for the next tick."""
        config, tick_s = self._config, self._config.tick_s
        if next_tick.needs_glances:
            return tick_s
        # The memory of other processes is read at ticks, and a tick feeds the watchdog.
        longest_s = min(config.auto.interval_s, self._manager.watchdog_s, config.unattended_s) / 2
        unread_s = self._reading_due_s - time.monotonic()
        rest_s = max(tick_s, min(_LONGEST_REST_TICKS * tick_s, longest_s, unread_s))
        self._rests_long = rest_s > tick_s
        return rest_s

    async def _reload_config(self, service: DaemonService) -> None:
        """Apply changes that need no restart; report the others."""
        try:
            new = self._load_config()
        except errors.ConfigError as error:
            log.error("config.rejected", reason=error.message, hint=error.hint)
            return
        in_force, waiting = reloaded(self._config, new)
        for keys, words in contradictions(in_force):
            reason = f"{keys[0]}: {words}; related changes in the file need a restart"
            log.error("config.rejected", reason=reason, hint="restart the daemon")
            return
        self._config = in_force
        configure_logging(in_force.log)
        if waiting:
            log.warning("config.needs-restart", keys=waiting)
        log.info("config.reloaded", tick_s=in_force.tick_s)
        await service.use(in_force)


def _exporter(config: Config, snapshot: MetricsSnapshot) -> PrometheusExporter:
    metrics = config.metrics
    options = SeriesOptions(metrics.labels, metrics.top_sites, metrics.max_series, metrics.linger_s)
    tables = msgspec.structs.asdict(config.limits)
    memory_bytes = tables.pop("daemon_rss_bytes")
    del tables["names_s"]
    budget_percent = {"process": config.budget.process_percent, "host": config.budget.host_percent}
    return PrometheusExporter(snapshot, options, limits=ExportedLimits(tables, budget_percent, memory_bytes))
