"""An exposition that has every metric there is."""

from __future__ import annotations

from msgspec.structs import replace
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bpfleakd.export.process_series import SeriesOptions
from bpfleakd.export.prometheus import PrometheusExporter
from bpfleakd.export.supervision_metrics import ExportedLimits
from bpfleakd.model.address_space import BillKind, BillLine
from bpfleakd.model.container import ContainerKind, GroupMemory
from bpfleakd.model.metrics import MetricLabel, ProcessUsage
from bpfleakd.model.process_events import ProcessEventStats
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.verdict import Verdict
from bpfleakd.model.watching import WatchSummary

from ..samples import a_process_verdict, a_site, a_snapshot, a_traced_process, a_watched_process

LIMITS = ExportedLimits(
    {
        "processes": 512,
        "live_blocks": 4_000_000,
        "sites": 65_536,
        "stacks": 65_536,
        "process_sites": 32_768,
        "threads": 16_384,
    },
    {"process": 10.0, "host": 25.0},
    256 << 20,
)


def every_family(labels: tuple[MetricLabel, ...] = (MetricLabel.COMM,)) -> list[Metric]:
    """All families, each with a sample."""
    row = a_traced_process(losses={"live_full": 29})
    empty = a_snapshot(row, sites=(a_site(),))
    snapshot = replace(
        empty,
        daemon=replace(
            empty.daemon,
            process_events=ProcessEventStats(
                refused_total={"target-refused": 3}, missed_total={"rule 1": 2}, by_state={"traced": 1}
            ),
        ),
        watch=WatchSummary(907, 5, 2, 13, (a_watched_process(),)),
        usage={row.process.pid: ProcessUsage(9_000_011, 7, 23)},
        verdicts={row.process.pid: a_process_verdict()},
        managed={row.process.pid: ManagedHeap(".NET", Verdict.STEADY, "", 4_711, 9, 2, 0.0)},
        goroutines={row.process.pid: 31},
        containers=(GroupMemory("/shop", 2, 67_108_864, 5_000_011, {ContainerKind.ANON: 4_000_037}),),
        bills={row.process.pid: (BillLine(BillKind.HEAP_FREE, 3_000_017, None),)},
        table_entries=dict.fromkeys(LIMITS.tables, 7),
    )
    exporter = PrometheusExporter(snapshot, SeriesOptions(labels), limits=LIMITS)
    exporter.update(snapshot, 0.0, 0.01)
    body, _ = exporter.expose("application/openmetrics-text;version=1.0.0")
    return list(text_string_to_metric_families(body.decode()))
