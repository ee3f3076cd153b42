"""Figures and their limits, and how both are printed and stored."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.machine import Machine, describe_machine

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    """A quantity, measured `samples` times; `name` says what was measured, `unit` is "" for a ratio."""

    name: str
    unit: str
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> str:
        """Lowest to highest."""
        if len(self.samples) == 1:
            return "once"
        return f"{_number(min(self.samples))} to {_number(max(self.samples))}"

    def __str__(self) -> str:
        return f"{_number(self.median)} {self.unit}".rstrip()


@dataclass(frozen=True, slots=True)
class Demand:
    """A figure with an upper `limit`. `figure` None: it could not be measured, for `reason`."""

    name: str
    limit: float
    unit: str
    figure: Figure | None = None
    reason: str = ""

    @property
    def verdict(self) -> str:
        if self.figure is None:
            return "NOT MEASURED"
        return "PASS" if self.figure.median <= self.limit else "FAIL"

    @property
    def limit_text(self) -> str:
        return f"{self.limit:g} {self.unit}".rstrip()

    def __str__(self) -> str:
        measured = str(self.figure) if self.figure else self.reason
        return f"{self.verdict:12}  {self.name}: {measured} (at most {self.limit_text})"


@dataclass(frozen=True, slots=True)
class Table:
    """Figures that are easier to read side by side."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Names of figures, one for each place on the panel's axis; None for a gap."""

    label: str
    figures: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `places` are numbers for lines, or names for bars."""

    title: str
    axis: str
    unit: str
    places: tuple[float, ...] | tuple[str, ...]
    series: tuple[Series, ...]
    log_axis: bool = False
    log_values: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of figures: panels side by side, in one file."""

    name: str
    title: str
    panels: tuple[Panel, ...]


@dataclass(slots=True)
class Benchmark:
    """The result of one benchmark. `notes` are sentences without which the figures cannot be read."""

    name: str
    title: str
    short: bool
    figures: list[Figure] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: Machine = field(default_factory=describe_machine)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def add(self, name: str, unit: str, samples: Sequence[float]) -> Figure:
        """Add a figure."""
        figure = Figure(name, unit, tuple(samples))
        self.figures.append(figure)
        return figure

    def demand(self, name: str, limit: float, figure: Figure | None, unit: str, reason: str = "") -> None:
        """Add the limit of a figure."""
        self.demands.append(Demand(name, limit, unit, figure, reason))

    def __str__(self) -> str:
        width = max((len(figure.name) for figure in self.figures), default=0)
        lines = [f"{self.title}", ""]
        lines += [f"  {f.name:{width}}  {f!s:>12}   ({f.spread})" for f in self.figures]
        for table in self.tables:
            lines += ["", *(f"  {' | '.join(row)}" for row in (table.head, *table.rows))]
        lines += ["", *(f"  {demand}" for demand in self.demands)]
        lines += ["", *(f"  {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"

    def write(self, directory: Path = RESULTS) -> None:
        """Write everything as JSON."""
        directory.mkdir(exist_ok=True)
        (directory / f"{self.name}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")


def with_middle(ratios: Sequence[float]) -> str:
    """The median, and the middle half if there are enough."""
    middle = f"{statistics.median(ratios):.0%}"
    if len(ratios) < 4:
        return middle
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{middle} ({low:.0%} to {high:.0%})"


def read_results(name: str, directory: Path = RESULTS) -> Benchmark:
    """Read what `write` wrote."""
    kept = json.loads((directory / f"{name}.json").read_text())
    kept["machine"] = Machine(**kept["machine"])
    kept["figures"] = [_figure(figure) for figure in kept["figures"]]
    kept["demands"] = [
        Demand(**{**demand, "figure": demand["figure"] and _figure(demand["figure"])})
        for demand in kept["demands"]
    ]
    kept["plots"] = [_plot(plot) for plot in kept.get("plots", ())]
    kept["tables"] = [
        Table(table["title"], tuple(table["head"]), tuple(map(tuple, table["rows"])))
        for table in kept.get("tables", ())
    ]
    return Benchmark(**kept)


def _figure(kept: dict) -> Figure:
    return Figure(kept["name"], kept["unit"], tuple(kept["samples"]))


def _plot(kept: dict) -> Plot:
    panels = []
    for panel in kept["panels"]:
        series = tuple(Series(one["label"], tuple(one["figures"])) for one in panel["series"])
        panels.append(Panel(**{**panel, "places": tuple(panel["places"]), "series": series}))
    return Plot(kept["name"], kept["title"], tuple(panels))


def _number(value: float) -> str:
    """Rounded to significant digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    decimals = 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{decimals}f}" if value else "0"
