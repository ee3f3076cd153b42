"""results/README.md: the results, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.figures import Benchmark
from bench.plots import file_name

_HEAD = """\
# What tracing costs

Written by `make bench`; the JSON files beside it have every sample. Figures are medians; the ways to trace
took turns in one run, and a ratio is the median of the ratios of the turns. Time in a traced program is its
processor time.
"""


def results_page(benchmarks: Sequence[Benchmark]) -> str:
    """The page: first the limits, then all figures."""
    lines = [_HEAD, "## What is demanded", ""]
    lines += _table(
        ("", "measured", "at most", "demand"),
        (
            (demand.verdict, str(demand.figure or demand.reason), demand.limit_text, demand.name)
            for benchmark in benchmarks
            for demand in benchmark.demands
        ),
    )
    for benchmark in benchmarks:
        lines += ["", f"## {benchmark.title}", "", f"{benchmark.machine}.", ""]
        for plot in benchmark.plots:
            lines += [f"![{plot.title}]({file_name(benchmark, plot)})", ""]
        for table in benchmark.tables:
            lines += [table.title, ""] if table.title else []
            lines += [*_table(table.head, table.rows), ""]
        lines += _table(
            ("figure", "median", "lowest to highest", "samples"),
            ((f.name, str(f), f.spread, str(len(f.samples))) for f in benchmark.figures),
        )
        lines += [line for note in benchmark.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(titles)
    yield _row(["---"] * len(titles))
    yield from map(_row, rows)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
