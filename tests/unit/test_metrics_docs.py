"""docs/metrics.md lists every metric, and nothing else."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.core import Metric

from bpfleakd.model.metrics import MetricLabel

from .export.exposition import every_family

DOCS = (Path(__file__).parents[2] / "docs/metrics.md").read_text()

_SUFFIXES = {"counter": "_total", "info": "_info"}


def row(family: Metric) -> str:
    """The line of the table: name, type, labels (without those of the process), help text."""
    labels = {name for sample in family.samples for name in sample.labels} - {"le"}
    is_of_process = "unit" in labels
    texts = [f"`{name}`" for name in sorted(labels - {"comm", "unit"})]
    if is_of_process:
        texts.insert(0, "*process*")
    elif "comm" in labels:
        texts.insert(0, "`comm`")
    name = family.name + _SUFFIXES.get(family.type, "")
    return f"| `{name}` | {family.type} | {', '.join(texts)} | {family.documentation} |"


def test_every_metric_is_documented():
    """In a separate row with type, labels and meaning; and every documented metric exists."""
    expected = [row(family) for family in every_family((MetricLabel.COMM, MetricLabel.UNIT))]
    found = [line for line in DOCS.splitlines() if line.startswith(("| `bpfleakd_", "| `process_"))]
    assert sorted(found) == sorted(expected)
