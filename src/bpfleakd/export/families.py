"""Families of metrics, and their text for Prometheus.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/ and OpenMetrics 1.0
(https://prometheus.io/docs/specs/om/open_metrics_spec/). The usual client library needs 3 MB of the 64 that
the daemon may have resident, mostly for the web server that comes with it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

__all__ = [
    "CounterFamily",
    "Family",
    "GaugeFamily",
    "Histogram",
    "InfoFamily",
    "exposition",
    "is_openmetrics",
]

# OpenMetrics and the older format differ in what these types are called and where their suffix belongs.
_SUFFIXES = {"counter": "_total", "info": "_info"}
_OLDER_TYPES = {"info": "gauge"}

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Family:
    """A metric with its samples; `name` lacks the suffix of its type, and gets its unit's."""

    def __init__(self, kind: str, name: str, documentation: str, labels: Sequence[str], unit: str) -> None:
        self.kind = kind
        self.name = f"{name}_{unit}" if unit and not name.endswith(f"_{unit}") else name
        self.documentation = documentation
        self.unit = unit
        self.labels = tuple(labels)
        # (what follows the name, labels, value)
        self.samples: list[tuple[str, Mapping[str, str], float]] = []

    def _add(self, values: Sequence[str], value: float, more: Mapping[str, str], suffix: str) -> None:
        self.samples.append((suffix, {**dict(zip(self.labels, values, strict=True)), **more}, value))


class GaugeFamily(Family):
    """What goes up and down; with `value`, one sample without labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        value: float | None = None,
        *,
        labels: Sequence[str] = (),
        unit: str = "",
    ) -> None:
        super().__init__("gauge", name, documentation, labels, unit)
        if value is not None:
            self.add((), value)

    def add(self, values: Sequence[str], value: float) -> None:
        """Add a sample; `values` are those of the labels, in order."""
        self._add(values, value, {}, "")


class CounterFamily(Family):
    """What only goes up; with `value`, one sample without labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        value: float | None = None,
        *,
        labels: Sequence[str] = (),
        unit: str = "",
    ) -> None:
        super().__init__("counter", name, documentation, labels, unit)
        if value is not None:
            self.add((), value)

    def add(self, values: Sequence[str], value: float) -> None:
        """Add a sample; `values` are those of the labels, in order."""
        self._add(values, value, {}, "_total")


class InfoFamily(Family):
    """Texts as labels; with `texts`, one sample of these."""

    def __init__(
        self,
        name: str,
        documentation: str,
        texts: Mapping[str, str] | None = None,
        *,
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__("info", name, documentation, labels, "")
        if texts is not None:
            self.add((), texts)

    def add(self, values: Sequence[str], texts: Mapping[str, str]) -> None:
        """Add a sample; `values` are those of the labels, in order, `texts` further ones."""
        self._add(values, 1.0, texts, "_info")


class Histogram:
    """How many of the observed values were at most each of `bounds`, which rise."""

    def __init__(self, name: str, documentation: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Take in one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> Family:
        """Return what was observed so far."""
        family = Family("histogram", self._name, self._documentation, (), "")
        for bound, count in zip(self._bounds, accumulate(self._counts), strict=True):
            family.samples.append(("_bucket", {"le": _number(bound)}, count))
        family.samples.append(("_count", {}, sum(self._counts)))
        family.samples.append(("_sum", {}, self._sum))
        return family


def is_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics 1, or OpenMetrics of any version."""
    for accepted in accept.split(","):
        media_type, *parameters = (part.strip() for part in accepted.split(";"))
        if media_type == "application/openmetrics-text":
            versions = [text.partition("=")[2] for text in parameters if text.startswith("version=")]
            if not versions or versions[0].startswith("1."):
                return True
    return False


def exposition(families: Iterable[Family], *, openmetrics: bool) -> tuple[bytes, str]:
    """Return the text and its content type, in OpenMetrics 1.0 or in Prometheus' own format."""
    lines = [line for family in families for line in _lines(family, openmetrics=openmetrics)]
    if openmetrics:
        body = "".join([*lines, "# EOF\n"])
        return body.encode(), "application/openmetrics-text; version=1.0.0; charset=utf-8"
    return "".join(lines).encode(), "text/plain; version=0.0.4; charset=utf-8"


def _lines(family: Family, *, openmetrics: bool) -> Iterator[str]:
    name, kind = family.name, family.kind
    escapes = _ESCAPES if openmetrics else _HELP_ESCAPES
    if not openmetrics:
        name += _SUFFIXES.get(kind, "")
        kind = _OLDER_TYPES.get(kind, kind)
    yield f"# HELP {name} {family.documentation.translate(escapes)}\n"
    yield f"# TYPE {name} {kind}\n"
    if openmetrics and family.unit:
        yield f"# UNIT {name} {family.unit}\n"
    for suffix, labels, value in family.samples:
        pairs = ",".join(f'{label}="{text.translate(_ESCAPES)}"' for label, text in labels.items())
        yield f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {_number(value)}\n"


def _number(value: float) -> str:
    """As Go reads and writes it: the value of the label `le` has to be the same text everywhere."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
