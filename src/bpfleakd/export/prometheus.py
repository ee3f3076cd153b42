"""Prometheus metrics: turns the snapshots of ticks into text.

Rules:
- The number of series is bounded by construction (export/process_series.py), whatever the snapshot holds.
- A label set occurs once, since Prometheus refuses a whole scrape with a duplicate: series with the same
  labels are summed.
- Label values are printable and of bounded length: traced programs choose most of them.
- Counters include every tick, whether anybody scrapes or not, and never fall while their series exists.

docs/metrics.md has every metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bpfleakd.export.client import (
    OPENMETRICS_TYPE,
    PLAIN_TYPE,
    Collector,
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    Histogram,
    InfoMetricFamily,
    Metric,
    ProcessCollector,
    as_openmetrics,
    as_plain_text,
)
from bpfleakd.export.container_metrics import container_families
from bpfleakd.export.daemon_metrics import daemon_families
from bpfleakd.export.figures import Counter, Gauge, label_text, label_value
from bpfleakd.export.process_figures import BILL_GAUGES, PROCESS_COUNTERS, PROCESS_GAUGES
from bpfleakd.export.process_series import ProcessSeries, SeriesOptions, ShownSeries, ShownSite
from bpfleakd.export.series_sums import Sums
from bpfleakd.export.site_figures import SITE_COUNTERS, SITE_GAUGES
from bpfleakd.export.supervision_metrics import ExportedLimits, guard_families, watch_families
from bpfleakd.model.metrics import MetricLabel, MetricsSnapshot
from bpfleakd.model.process import ProcessRow

# Around the target of 50 ms per tick.
_TICK_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

_OPENMETRICS = "application/openmetrics-text"
_SITE_LABELS = ("site", "kind", "function", "module")


class PrometheusExporter:
    """All metrics of the daemon, in a separate registry."""

    def __init__(
        self,
        snapshot: MetricsSnapshot,
        options: SeriesOptions,
        *,
        limits: ExportedLimits,
        proc_root: str = "/proc",
    ) -> None:
        self._options = options
        self._limits = limits
        self._series = ProcessSeries(options)
        self._snapshot = snapshot
        self._taken_in: MetricsSnapshot | None = None
        self._shown = ShownSeries({}, (), (), {})
        self._exposed: dict[str, bytes] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_SnapshotCollector(self._families))
        ProcessCollector(proc=proc_root, registry=self._registry)
        self._tick_duration = Histogram(
            "bpfleakd_tick_duration_seconds",
            "Time taken to read the kernel's counters and update the tables.",
            buckets=_TICK_BUCKETS_S,
            registry=self._registry,
        )

    def update(self, snapshot: MetricsSnapshot, now_s: float, tick_s: float) -> None:
        """Add the snapshot after a tick that took `tick_s`; `now_s` is monotonic."""
        self._exposed.clear()
        self._tick_duration.observe(tick_s)
        if snapshot is self._taken_in:
            return
        self._taken_in = snapshot
        self._shown = self._series.update(snapshot, now_s)
        self._snapshot = snapshot

    def expose(self, accept: str = "") -> tuple[bytes, str]:
        """Return (body, content type) in OpenMetrics if an Accept header names it.

        It is made once for each tick: with many processes it takes some 30 ms of the loop, and a client can
        ask a hundred times a second.
        """
        named = {part.partition(";")[0].strip() for part in accept.split(",")}
        content_type = OPENMETRICS_TYPE if _OPENMETRICS in named else PLAIN_TYPE
        if content_type not in self._exposed:
            encode = as_openmetrics if content_type == OPENMETRICS_TYPE else as_plain_text
            self._exposed[content_type] = encode(self._registry)
        return self._exposed[content_type], content_type

    def _families(self) -> Iterator[Metric]:
        labels = self._options.labels
        yield from daemon_families(self._snapshot, self._shown, self._limits.tables, self._options.max_series)
        yield from watch_families(self._snapshot.watch)
        yield from guard_families(self._snapshot.guard, self._limits)
        yield from _families("process", PROCESS_GAUGES, PROCESS_COUNTERS, labels, self._shown.processes)
        yield _bills(self._shown.processes, labels)
        yield _process_infos(self._shown.infos, labels)
        yield from container_families(self._snapshot.containers)
        sites = {_site_labels(site): site.sums for site in self._shown.sites}
        yield from _families("site", SITE_GAUGES, SITE_COUNTERS, (*labels, *_SITE_LABELS), sites)
        yield _site_verdicts(self._shown.sites, (*labels, *_SITE_LABELS))
        yield _site_infos(self._shown.sites)


class _SnapshotCollector(Collector):
    """The registry calls it at each scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _families(
    prefix: str,
    gauges: Iterable[Gauge[Any]],
    counters: Iterable[Counter[Any]],
    labels: tuple[str, ...],
    sums: Mapping[tuple[str, ...], Sums],
) -> Iterator[Metric]:
    for index, gauge in enumerate(gauges):
        metric = GaugeMetricFamily(
            f"bpfleakd_{prefix}_{gauge.name}", gauge.documentation, labels=labels, unit=gauge.unit
        )
        for values, figures in sums.items():
            value = figures.gauges[index]
            if value is not None:
                metric.add_metric(values, value)
        yield metric
    for index, counter in enumerate(counters):
        total = CounterMetricFamily(
            f"bpfleakd_{prefix}_{counter.name}", counter.documentation, labels=labels, unit=counter.unit
        )
        for values, figures in sums.items():
            total.add_metric(values, figures.counters[index])
        yield total


def _bills(sums: Mapping[tuple[str, ...], Sums], labels: tuple[str, ...]) -> Metric:
    """The figures of a bill, which follow the other gauges."""
    metric = GaugeMetricFamily(
        "bpfleakd_process_bill_bytes",
        "What memory, resident or swapped, is spent on, by kind, when it had last changed by a tenth.",
        labels=(*labels, "kind"),
        unit="bytes",
    )
    for values, figures in sums.items():
        for gauge, value in zip(BILL_GAUGES, figures.gauges[len(PROCESS_GAUGES) :], strict=True):
            if value is not None:
                metric.add_metric((*values, gauge.name), value)
    return metric


def _process_infos(rows: Iterable[ProcessRow], labels: tuple[MetricLabel, ...]) -> Metric:
    """The processes behind labels that do not identify them."""
    metric = InfoMetricFamily("bpfleakd_process", "A traced process: PID, program and mode.", labels=labels)
    for row in rows:
        process = row.process
        # Configured labels come first; the same name may not occur twice.
        more = {
            "pid": str(process.pid),
            "exe": label_text(process.exe, keep_end=True),
            "mode": process.mode,
            "state": process.state.value,
        }
        values = [label_value(label, process) for label in labels]
        metric.add_metric(values, {name: text for name, text in more.items() if name not in labels})
    return metric


def _site_labels(site: ShownSite) -> tuple[str, ...]:
    text = site.text
    return (*site.labels, label_text(site.site), text.kind.value, text.function, text.module)


def _site_verdicts(sites: Iterable[ShownSite], labels: tuple[str, ...]) -> Metric:
    metric = GaugeMetricFamily(
        "bpfleakd_site_verdict",
        "Confidence, 0 to 1, in the verdict that the label names; of several processes, the worst.",
        labels=(*labels, "verdict"),
    )
    for site in sites:
        if site.verdict is not None:
            metric.add_metric((*_site_labels(site), site.verdict.value), site.confidence)
    return metric


def _site_infos(sites: Iterable[ShownSite]) -> Metric:
    """The stack of each fingerprint: once, however many processes have it."""
    metric = InfoMetricFamily(
        "bpfleakd_site",
        "A call site: its stack, from the thread's first function to the allocator's, cut at its start.",
        labels=["site"],
    )
    for site, text in {site.site: site.text for site in sites}.items():
        metric.add_metric(
            [label_text(site)],
            {
                "kind": text.kind.value,
                "function": text.function,
                "module": text.module,
                "location": text.location,
                "called_by": text.called_by,
                "stack": text.stack,
            },
        )
    return metric
