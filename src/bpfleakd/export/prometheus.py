"""Prometheus metrics: a snapshot in, text out.

Rules:
- The number of series is bounded: each process has a fixed number of its own, and `top_sites` call sites
  at most, whatever the snapshot holds.
- A label set occurs once. Prometheus refuses a whole scrape for one that occurs twice, so processes are
  told apart by pid, and call sites of one process with the same fingerprint are added up.
- Label values are printable and of bounded length: traced programs choose most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.registry import Collector

from bpfleakd.analysis.merging import merged_sites
from bpfleakd.export.guard_metrics import guard_families
from bpfleakd.export.watch_metrics import watch_families
from bpfleakd.model import (
    DaemonStats,
    LifeStats,
    MetricsSnapshot,
    ProcessState,
    ProcessSummary,
    SiteReport,
    TracedProcess,
)
from bpfleakd.printable import printable, shortened

__all__ = ["PrometheusExporter"]

_LABEL_CHARS = 128

# Around the target of 50 ms a tick.
_TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]

_PROCESS_METRICS: tuple[tuple[_Family, str, str, Callable[[ProcessSummary], float]], ...] = (
    (
        GaugeMetricFamily,
        "traced",
        "1 while the process is traced; 0: its figures are those of the last time that it was.",
        lambda process: process.state == ProcessState.TRACED,
    ),
    (
        GaugeMetricFamily,
        "live_bytes",
        "Bytes allocated since attach and not freed yet.",
        lambda process: process.live_bytes,
    ),
    (
        GaugeMetricFamily,
        "live_allocations",
        "Blocks allocated since attach and not freed yet.",
        lambda process: process.live_count,
    ),
    (
        GaugeMetricFamily,
        "peak_live_bytes",
        "The most bytes that were live at once since attach.",
        lambda process: process.peak_live_bytes,
    ),
    (
        GaugeMetricFamily,
        "growth_bytes_per_second",
        "Change of the live bytes over the history window.",
        lambda process: process.growth_bytes_per_s,
    ),
    (
        CounterMetricFamily,
        "allocated_bytes",
        "Bytes allocated since attach.",
        lambda process: process.allocated_bytes,
    ),
    (
        CounterMetricFamily,
        "allocations",
        "Blocks allocated since attach.",
        lambda process: process.allocated_count,
    ),
    (
        CounterMetricFamily,
        "frees",
        "Blocks freed since attach.",
        lambda process: process.freed_count,
    ),
    (
        CounterMetricFamily,
        "unmatched_frees",
        "Frees of blocks whose allocation was not seen: most are from before the attach.",
        lambda process: process.unmatched_frees,
    ),
)

# Of the rows of `ps`.
_TRACED_METRICS: tuple[tuple[_Family, str, str, Callable[[TracedProcess], float]], ...] = (
    (
        CounterMetricFamily,
        "probe_hits",
        "How often the process ran into a probe: what tracing costs it, in units of about 0.5 us.",
        lambda row: row.probe_hits,
    ),
    (
        GaugeMetricFamily,
        "tracing_cores",
        "Processor time that tracing costs the process: 1 is a core.",
        lambda row: row.load_percent / 100,
    ),
    (
        CounterMetricFamily,
        "adoptions",
        "Daemons that took the process over from one that had ended.",
        lambda row: row.adopted_count,
    ),
    (
        CounterMetricFamily,
        "gap_seconds",
        "Time without a daemon: the programs counted on, but new libraries were not probed.",
        lambda row: row.gap_s,
    ),
)

_SITE_METRICS: tuple[tuple[_Family, str, str, Callable[[SiteReport], float]], ...] = (
    (
        GaugeMetricFamily,
        "live_bytes",
        "Bytes allocated at this call site and not freed yet.",
        lambda site: site.live_bytes,
    ),
    (
        GaugeMetricFamily,
        "live_allocations",
        "Blocks allocated at this call site and not freed yet.",
        lambda site: site.live_count,
    ),
    (
        GaugeMetricFamily,
        "growth_bytes_per_second",
        "Change of this call site's live bytes over the history window.",
        lambda site: site.growth_bytes_per_s,
    ),
    (
        CounterMetricFamily,
        "allocated_bytes",
        "Bytes allocated at this call site since attach.",
        lambda site: site.allocated_bytes,
    ),
    (
        CounterMetricFamily,
        "allocations",
        "Blocks allocated at this call site since attach.",
        lambda site: site.allocated_count,
    ),
)

_PROCESS_LABELS = ("pid", "comm")
_SITE_LABELS = (*_PROCESS_LABELS, "site", "kind", "function", "module")


class PrometheusExporter:
    """All metrics of the daemon, in a registry of their own.

    `snapshot` is called once a scrape, in the thread that calls `expose`. `top_sites` may be set anew.
    """

    def __init__(
        self, snapshot: Callable[[], MetricsSnapshot], *, top_sites: int, proc_root: str = "/proc"
    ) -> None:
        self.top_sites = top_sites
        self._snapshot = snapshot
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(self._families))
        ProcessCollector(proc=proc_root, registry=self._registry)
        self._tick_duration = Histogram(
            "bpfleakd_tick_duration_seconds",
            "Time taken to read the kernel's counters and update the tables.",
            buckets=_TICK_BUCKETS_S,
            registry=self._registry,
        )

    def observe_tick(self, seconds: float) -> None:
        """Count one tick of that duration."""
        self._tick_duration.observe(seconds)

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """Return (body, content type) in the best format that an Accept header asks for."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version in the header that is none
            encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
        return encode(self._registry), content_type

    def _families(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        processes = _one_per_pid(snapshot.processes)
        sites = [
            (traced.process, site)
            for traced in processes
            for site in merged_sites(snapshot.top_sites.get(traced.process.pid, ()))[: self.top_sites]
        ]
        traced = sum(process.process.state == ProcessState.TRACED for process in processes)
        yield from _daemon_families(snapshot.daemon, traced)
        yield from watch_families(snapshot.watch)
        yield from guard_families(snapshot.guard)
        yield from _process_families(processes)
        yield from _site_families(sites)


class _SnapshotCollector(Collector):
    """What the registry asks at each scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _daemon_families(daemon: DaemonStats, processes: int) -> Iterator[Metric]:
    build = {"version": _label(daemon.version), "attach_method": _label(daemon.attach_method)}
    yield InfoMetricFamily("bpfleakd_build", "The daemon, and how it attaches on this kernel.", build)
    yield GaugeMetricFamily("bpfleakd_uptime_seconds", "Time since the daemon started.", daemon.uptime_s)
    yield CounterMetricFamily("bpfleakd_ticks", "Readings of the kernel's counters.", daemon.ticks)
    yield GaugeMetricFamily("bpfleakd_processes_traced", "Processes traced now.", processes)
    attached, ended = daemon.processes_attached_total, daemon.processes_ended_total
    yield CounterMetricFamily("bpfleakd_processes_attached", "Processes attached to.", attached)
    yield CounterMetricFamily(
        "bpfleakd_processes_ended", "Traced processes that exited or called exec.", ended
    )
    yield from _life_families(daemon.life)


def _life_families(life: LifeStats) -> Iterator[Metric]:
    yield InfoMetricFamily(
        "bpfleakd_life_source",
        "How processes are noticed: by the kernel's events, or by scans of /proc.",
        {"source": _label(life.source)},
    )
    yield CounterMetricFamily(
        "bpfleakd_life_events", "Forks, execs, ends and changes of processes.", life.events_total
    )
    yield CounterMetricFamily("bpfleakd_life_gaps", "Times that process events were missed.", life.gaps_total)
    yield CounterMetricFamily("bpfleakd_rescans", "Looks at all processes.", life.rescans_total)
    yield CounterMetricFamily(
        "bpfleakd_short_lived_processes",
        "Processes that ended before they were looked at.",
        life.short_lived_total,
    )
    refused = CounterMetricFamily(
        "bpfleakd_refused",
        "Processes that should have been traced and could not be.",
        labels=["reason"],
    )
    for reason, count in life.refused_total.items():
        refused.add_metric([_label(reason)], count)
    yield refused
    states = GaugeMetricFamily("bpfleakd_processes", "Processes of this host by state.", labels=["state"])
    for state, count in life.by_state.items():
        states.add_metric([_label(state)], count)
    yield states


def _process_families(processes: Iterable[TracedProcess]) -> Iterator[Metric]:
    summaries = [process.process for process in processes]
    for family, name, documentation, value in _PROCESS_METRICS:
        metric = family(f"bpfleakd_process_{name}", documentation, labels=_PROCESS_LABELS)
        for summary in summaries:
            metric.add_metric(_process_labels(summary), value(summary))
        yield metric
    for traced_family, name, documentation, figure in _TRACED_METRICS:
        metric = traced_family(f"bpfleakd_process_{name}", documentation, labels=_PROCESS_LABELS)
        for process in processes:
            metric.add_metric(_process_labels(process.process), figure(process))
        yield metric
    losses = CounterMetricFamily(
        "bpfleakd_process_losses",
        "What was missed, by reason: the other figures do not include it.",
        labels=(*_PROCESS_LABELS, "reason"),
    )
    for process in processes:
        for reason, count in process.losses.items():
            losses.add_metric([*_process_labels(process.process), _label(reason)], count)
    yield losses


def _site_families(sites: Iterable[tuple[ProcessSummary, SiteReport]]) -> Iterator[Metric]:
    labelled = [(_site_labels(process, site), site) for process, site in sites]
    for family, name, documentation, value in _SITE_METRICS:
        metric = family(f"bpfleakd_site_{name}", documentation, labels=_SITE_LABELS)
        for labels, site in labelled:
            metric.add_metric(labels, value(site))
        yield metric
    leaks = GaugeMetricFamily(
        "bpfleakd_site_leak_bytes_per_second",
        "What this call site gains for good, if its verdict is leak or growing, else 0.",
        labels=(*_SITE_LABELS, "verdict"),
    )
    for labels, site in labelled:
        leaks.add_metric((*labels, site.verdict.value), site.leak_bytes_per_s)
    yield leaks


def _one_per_pid(processes: Iterable[TracedProcess]) -> list[TracedProcess]:
    """Of several processes that had the same pid, keep the one that lives, else the last."""
    by_pid: dict[int, TracedProcess] = {}
    for process in processes:
        known = by_pid.get(process.process.pid)
        if known is None or known.process.state != ProcessState.TRACED:
            by_pid[process.process.pid] = process
    return list(by_pid.values())


def _process_labels(process: ProcessSummary) -> tuple[str, str]:
    return str(process.pid), _label(process.comm)


def _site_labels(process: ProcessSummary, site: SiteReport) -> tuple[str, ...]:
    return (
        *_process_labels(process),
        _label(site.site),
        site.kind.value,
        _label(site.function or "unknown"),
        _label(site.module or "unknown", keep_end=True),
    )


def _label(text: str, *, keep_end: bool = False) -> str:
    return shortened(printable(text), _LABEL_CHARS, keep_end=keep_end)
