"""The results of a benchmark: stored and shown."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.figures import Benchmark, Panel, Plot, Series, Table, read_results
from bench.plots import draw
from bench.table import results_page


@pytest.fixture
def benchmark_found() -> Benchmark:
    """A benchmark with one of everything."""
    found = Benchmark("pair", "A pair", short=False)
    found.add("exact", "ns", [1_900, 2_000, 2_300])
    ratio = found.add("exact, of memleak", "", [0.1, 0.11, 0.12])
    found.demand(ratio.name, 0.25, ratio, "")
    found.demand("sampled, of memleak", 0.1, None, "", "memleak does not run here")
    found.notes.append("A note.")
    found.tables.append(Table("", ("program", "exact"), (("redis", "62%"),)))
    lines = Panel("", "live blocks", "ns", (1e4, 1e5), (Series("", ("exact", None)),), log_axis=True)
    bars = Panel("", "ns", "ns", ("exact", "not here"), (Series("1 thread", ("exact", "lacking")),))
    found.plots += [Plot("growth", "Growth", (lines,)), Plot("ways", "All ways <all>", (bars,))]
    return found


def test_what_is_written_is_read_again(tmp_path: Path, benchmark_found):
    """All of it, plots and tables too."""
    benchmark_found.write(tmp_path)

    assert read_results("pair", tmp_path) == benchmark_found


def test_the_page_has_demands_tables_and_plots(benchmark_found):
    """The verdict on each limit, and what was not measured."""
    page = results_page([benchmark_found])

    assert "| PASS | 0.11 | 0.25 | exact, of memleak |" in page
    assert "| NOT MEASURED | memleak does not run here | 0.1 | sampled, of memleak |" in page
    assert "| redis | 62% |" in page
    assert "![Growth](pair-growth.svg)" in page
    assert "| exact | 2,000 ns | 1,900 to 2,300 | 3 |" in page


def test_plots_are_drawn_of_what_there_is(tmp_path: Path, benchmark_found):
    """Text stays text; a figure that is lacking leaves a gap; the same figures make the same file."""
    paths = draw(benchmark_found, tmp_path)

    texts = [path.read_text() for path in paths]
    assert [path.name for path in paths] == ["pair-growth.svg", "pair-ways.svg"]
    for text in texts:
        assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "2,000 ns" in texts[1]
    assert "not here" in texts[1]
    assert [path.read_text() for path in draw(benchmark_found, tmp_path)] == texts
