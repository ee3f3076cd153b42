"""The targets for scraping profiles, for Prometheus' HTTP service discovery and compatible scrapers.

https://prometheus.io/docs/prometheus/latest/http_sd/
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfleakd.model.process import ProcessRow, ProcessState


def scrape_targets(processes: Iterable[ProcessRow], address: str) -> list[dict[str, object]]:
    """One target for each process that is currently traced, all at `address` (host:port).

    `__param_pid` becomes `?pid=N` of the URL; `service_name` is Pyroscope's name for a program.
    """
    return [
        {"targets": [address], "labels": _labels(row)}
        for row in processes
        if row.process.state is ProcessState.TRACED
    ]


def _labels(row: ProcessRow) -> dict[str, str]:
    process = row.process
    labels = {
        "__param_pid": str(process.pid),
        "pid": str(process.pid),
        "comm": process.comm,
        "service_name": process.comm,
        "unit": process.labels.unit,
        "container": process.labels.container,
        "pod": process.labels.pod,
    }
    return {name: value for name, value in labels.items() if value}
