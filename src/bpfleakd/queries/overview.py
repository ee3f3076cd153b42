"""A summary of all traced processes: rows, metrics, the daemon's own figures, the fill of its tables."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from bpfleakd import __version__
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.daemon import DaemonStats
from bpfleakd.model.metrics import MetricsSnapshot, ProcessUsage
from bpfleakd.model.process import ProcessRow, ProcessState
from bpfleakd.model.report import SiteReport, SortKey
from bpfleakd.model.resources import ResourceKind
from bpfleakd.process.memory_sampler import read_anonymous_bytes
from bpfleakd.process.process import thread_commands
from bpfleakd.queries.containers import ContainerFigures
from bpfleakd.queries.report import Reporter, sorted_sites
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.tracer import Tracer


class _Totals(Struct):
    ticks: int = 0
    last_tick_s: float = 0.0
    attached: int = 0
    ended: int = 0


class Overview(TracingObserver):
    """All processes as of the last tick. `top_sites` is the number of sites per process in a snapshot."""

    def __init__(self, tracer: Tracer, reporter: Reporter, *, attach_method: str, top_sites: int) -> None:
        self._tracer = tracer
        self._processes = tracer.processes
        self._reporter = reporter
        self._attach_method = attach_method
        self._top_sites = top_sites
        self._started_ns = tracer.clock_ns()
        self._totals = _Totals()
        self._containers = ContainerFigures()
        # Processes whose last figures are in no snapshot yet.
        self._just_ended: list[TracedProcess] = []

    def attached(self, traced: TracedProcess) -> None:
        """Count an attach."""
        self._totals.attached += 1

    def ticked(self, took_s: float) -> None:
        """Count a tick."""
        self._totals.ticks += 1
        self._totals.last_tick_s = took_s

    def ended(self, traced: TracedProcess) -> None:
        """Put the last figures of a process into the next snapshot."""
        self._just_ended.append(traced)
        self._totals.ended += 1

    def processes(self) -> tuple[ProcessRow, ...]:
        """Every traced process, then those that ended recently."""
        now_ns = self._tracer.clock_ns()
        return tuple(
            self._reporter.row(traced, now_ns)
            for traced in (*self._processes.running.values(), *self._processes.ended.values())
        )

    def stats(self) -> DaemonStats:
        """The daemon's own figures."""
        return DaemonStats(
            version=__version__,
            attach_method=self._attach_method,
            uptime_s=(self._tracer.clock_ns() - self._started_ns) / 1e9,
            ticks=self._totals.ticks,
            last_tick_s=self._totals.last_tick_s,
            processes_attached_total=self._totals.attached,
            processes_ended_total=self._totals.ended,
        )

    def snapshot(self) -> MetricsSnapshot:
        """The content of the metrics, as of the last tick and without a census.

        It is made every few ticks, since it names the largest sites while the process still exists. A
        detached process that still runs is included with its last report; an ended one is included once.
        """
        now_ns = self._tracer.clock_ns()
        running = self._processes.running.values()
        top_sites: dict[int, tuple[SiteReport, ...]] = {}
        usage = {}
        for traced in running:
            if traced.is_set_aside(now_ns):
                continue
            with traced.isolated(self._tracer.clock_ns):
                threads = thread_commands(traced.pid)
                traced.note_threads(threads)
                usage[traced.pid] = ProcessUsage(
                    traced.anonymous_bytes, len(threads), traced.resources.count(ResourceKind.DESCRIPTORS)
                )
                view = self._tracer.view(traced)
                report = self._reporter.report(view, now_ns, SortKey.VERDICT, self._top_sites)
                top_sites[traced.pid] = report.sites
        kept, self._just_ended = self._just_ended, []
        told = {id(traced) for traced in kept}
        kept += [each for each in self._processes.ended.values() if id(each) not in told and _runs_on(each)]
        for traced in kept:
            if traced.final is not None and traced.pid not in top_sites:
                top_sites[traced.pid] = sorted_sites(traced.final.sites, SortKey.VERDICT, self._top_sites)
        rows = tuple(self._reporter.row(traced, now_ns) for traced in (*running, *kept))
        entries = table_entries(
            [traced.counters for traced in running],
            threads=sum(process.threads for process in usage.values()),
        )
        return MetricsSnapshot(
            self.stats(),
            rows,
            top_sites,
            usage=usage,
            verdicts={
                traced.pid: traced.process_verdict for traced in running if traced.process_verdict is not None
            },
            managed={traced.pid: traced.heap.heap for traced in running if traced.heap.heap is not None},
            goroutines={
                traced.pid: traced.goroutines.count
                for traced in running
                if traced.goroutines is not None and traced.goroutines.count is not None
            },
            table_entries=entries,
            ring_used_share=self._tracer.ring_used_share,
            containers=self._containers.of([traced.pid for traced in running], now_ns),
        )


def _runs_on(traced: TracedProcess) -> bool:
    """Whether a detached process still runs; its pid may have been reused."""
    if traced.state is not ProcessState.DETACHED:
        return False
    return read_anonymous_bytes(traced.attachment.process.id) is not None


def table_entries(processes: Collection[ProcessCounters], *, threads: int) -> dict[str, int]:
    """Entries by table, under the names of the section `limits`: the programs count, since maps do not.

    `live_blocks` and `process_sites` are those of the process with the most, as their limits are. The number
    of threads of traced processes is an upper bound: a thread has an entry from its first allocation on.
    """
    return {
        "processes": len(processes),
        "live_blocks": max((one.recorded - one.released for one in processes), default=0),
        # Each has an overflow site.
        "sites": sum(one.site_count + 1 for one in processes),
        "stacks": sum(one.stack_count for one in processes),
        "process_sites": max((one.site_count for one in processes), default=0),
        "threads": threads,
    }
