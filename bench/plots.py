"""Draws the figures of a benchmark as SVG files, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import Benchmark, Figure, Panel, Plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = {
    # Text stays text, and the same figures give the same file.
    "svg.fonttype": "none",
    "svg.hashsalt": "bpfleakd",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "axes.prop_cycle": "cycler('color', ['1f5fa8', 'd9772b', '3d9651', 'b0413e', '7a5ea8', '8c8c8c'])",
}
_PANEL_INCHES, _BAR_INCHES, _LINE_HEIGHT_INCHES = 3.4, 0.26, 2.8
# The share of the room between two places that all bars of one place take.
_BARS_SHARE = 0.8


def file_name(benchmark: Benchmark, plot: Plot) -> str:
    """The file name of a plot."""
    return f"{benchmark.name}-{plot.name}.svg"


def draw(benchmark: Benchmark, directory: Path) -> list[Path]:
    """Write all plots of a benchmark. Raises ImportError without matplotlib."""
    import matplotlib

    written = []
    with matplotlib.rc_context(_STYLE):
        for plot in benchmark.plots:
            path = directory / file_name(benchmark, plot)
            _draw(plot, {figure.name: figure for figure in benchmark.figures}, path)
            written.append(path)
    return written


def _draw(plot: Plot, figures: dict[str, Figure], path: Path) -> None:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    bars = max((_bars_of(panel) for panel in plot.panels), default=0)
    height = 1.3 + _BAR_INCHES * bars if bars else _LINE_HEIGHT_INCHES + 0.4
    width = _PANEL_INCHES * len(plot.panels) + (3.0 if bars else 0.4)
    canvas = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(canvas)
    canvas.suptitle(plot.title, fontsize=11, fontweight="bold")
    for axes, panel in zip(canvas.subplots(1, len(plot.panels), squeeze=False)[0], plot.panels, strict=True):
        (_bars if _bars_of(panel) else _lines)(axes, panel, figures)
        if panel.title and len(plot.panels) > 1:
            axes.set_title(panel.title, fontsize=10)
    # Without the day: it is in the table.
    canvas.savefig(path, format="svg", metadata={"Date": None})


def _bars_of(panel: Panel) -> int:
    if panel.places and isinstance(panel.places[0], str):
        return len(panel.places) * len(panel.series)
    return 0


def _lines(axes: Axes, panel: Panel, figures: dict[str, Figure]) -> None:
    for series in panel.series:
        known = [
            (place, figures[name])
            for place, name in zip(panel.places, series.figures, strict=True)
            if name in figures
        ]
        places, medians, errors = _points(known)
        axes.errorbar(places, medians, errors, marker="o", markersize=3.5, capsize=2, label=series.label)
    if panel.log_axis:
        axes.set_xscale("log")
    if panel.log_values:
        axes.set_yscale("log")
    else:
        # From zero, so that constant figures look flat.
        axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.05)
    axes.set_xlabel(panel.axis)
    axes.set_ylabel(panel.unit)
    if any(series.label for series in panel.series):
        axes.legend(frameon=False)


def _bars(axes: Axes, panel: Panel, figures: dict[str, Figure]) -> None:
    """Horizontal bars, the first at the top, labelled with their medians."""
    thickness = _BARS_SHARE / len(panel.series)
    for number, series in enumerate(panel.series):
        offset = (number - (len(panel.series) - 1) / 2) * thickness
        known = [
            (place + offset, figures[name]) for place, name in enumerate(series.figures) if name in figures
        ]
        places, medians, errors = _points(known)
        axes.barh(places, medians, thickness * 0.92, xerr=errors, label=series.label, ecolor="#555555")
        for place, figure in known:
            axes.annotate(
                f" {figure}",
                (max(figure.samples), place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
    axes.set_yticks(range(len(panel.places)), panel.places)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    if panel.log_values:
        axes.set_xscale("log")
    axes.margins(x=0.16)
    axes.set_xlabel(panel.axis or panel.unit)
    if len(panel.series) > 1:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _points(known: list[tuple[float, Figure]]) -> tuple[list[float], list[float], list[list[float]]]:
    """Places, medians, and how far the lowest and the highest sample are from them."""
    medians = [figure.median for _place, figure in known]
    below = [figure.median - min(figure.samples) for _place, figure in known]
    above = [max(figure.samples) - figure.median for _place, figure in known]
    return [place for place, _figure in known], medians, [below, above]
