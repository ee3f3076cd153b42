"""Metrics of the watched processes, from their summary.

All are figures of the host, except for the rates of the fastest growers, ten at most.
"""

from __future__ import annotations

from collections.abc import Iterator

from bpfleakd.export.client import CounterMetricFamily, GaugeMetricFamily, Metric
from bpfleakd.model.watching import WatchSummary
from bpfleakd.printable import printable, shortened

_LABEL_CHARS = 128


def watch_families(watch: WatchSummary) -> Iterator[Metric]:
    """The families, also without watched processes."""
    yield GaugeMetricFamily(
        "bpfleakd_watched_processes", "Processes whose anonymous memory is read from /proc.", watch.watched
    )
    yield GaugeMetricFamily(
        "bpfleakd_growing_processes", "Watched processes whose memory grows persistently.", watch.growing
    )
    yield GaugeMetricFamily(
        "bpfleakd_windows_open", "Growing processes that are being traced.", watch.windows_open
    )
    yield CounterMetricFamily(
        "bpfleakd_windows_opened", "Number of times a growing process was traced.", watch.windows_opened_total
    )
    rate = GaugeMetricFamily(
        "bpfleakd_growing_process_bytes_per_second",
        "Growth of the anonymous memory of the fastest growing processes.",
        labels=("pid", "comm"),
    )
    for process in watch.fastest:
        comm = shortened(printable(process.comm), _LABEL_CHARS)
        rate.add_metric([str(process.pid), comm], process.growth_bytes_per_s)
    yield rate
