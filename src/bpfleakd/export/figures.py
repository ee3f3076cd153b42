"""Exported figures, and the labels that distinguish processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct

from bpfleakd.model.metrics import MetricLabel
from bpfleakd.model.process import ProcessSummary
from bpfleakd.printable import printable, shortened

_LABEL_CHARS = 128

T = TypeVar("T")


class Gauge(Struct, Generic[T], frozen=True):
    """`combine` makes one figure from those of several processes; None is unknown, and left out."""

    name: str
    unit: str
    documentation: str
    value: Callable[[T], float | None]
    combine: Callable[[Iterable[float]], float] = sum


class Counter(Struct, Generic[T], frozen=True):
    """Summed by series_sums.SeriesSums; its samples end in `_total`."""

    name: str
    unit: str
    documentation: str
    value: Callable[[T], float]


_LABELS: dict[MetricLabel, Callable[[ProcessSummary], str | None]] = {
    MetricLabel.COMM: lambda process: process.comm,
    MetricLabel.UNIT: lambda process: process.labels.unit,
    MetricLabel.CONTAINER: lambda process: process.labels.container,
    MetricLabel.POD: lambda process: process.labels.pod,
    MetricLabel.USER: lambda process: process.labels.user,
    MetricLabel.PID: lambda process: str(process.pid),
}


def label_value(label: MetricLabel, process: ProcessSummary) -> str:
    """The value of a configured label; "" (for Prometheus: no label) if the process has none."""
    return label_text(_LABELS[label](process) or "")


def label_text(text: str, max_chars: int = _LABEL_CHARS, *, keep_end: bool = False) -> str:
    """Text from a traced program, printable and of bounded length."""
    return shortened(printable(text), max_chars, keep_end=keep_end)
