"""Quotes figures of results/ in the documents: one measurement, the same wherever it is stated.

    python -m bench.quotes                       updates all of them, as `make bench` does at its end

A quotation stands between two comments, the first with a name of QUOTES: `<!--exact pair-->1.9 µs<!--/-->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from bench.figures import RESULTS, Benchmark, Figure, read_results

ROOT = Path(__file__).parents[1]
QUOTATION = re.compile(r"<!--([a-z0-9][^>]*?)-->(.*?)<!--/-->", re.DOTALL)

# Name: the benchmark and its figure.
QUOTES = {
    "untraced pair": ("pair", "nothing attached"),
    "empty probes": ("pair", "two empty probes"),
    "exact pair": ("pair", "bpfleakd, exact, session"),
    "sampled pair": ("pair", "bpfleakd, sampled, session"),
    "exact pair of memleak": ("pair", "bpfleakd, exact, session, of memleak"),
    "sampled pair of empty probes": ("pair", "bpfleakd, sampled, session, of two empty probes"),
    "sampled pair of empty probes by perf": ("pair", "bpfleakd, sampled, perf, of two empty probes"),
    "further process": ("pair", "bpfleakd, exact, session: each further process that is traced"),
    "memleak pair": ("pair", "memleak"),
    "heaptrack pair": ("pair", "heaptrack"),
    "valgrind pair": ("pair", "valgrind (memcheck)"),
    "jemalloc pair": ("pair", "jemalloc"),
    "jemalloc profiled pair": ("pair", "jemalloc, its sampled profile"),
    "tcmalloc heap profiler pair": ("pair", "tcmalloc, its heap profiler"),
    "walk of 5 frames": ("walk", "bpfleakd's walk, 5 frames, no frame pointers"),
    "walk of 30 frames": ("walk", "bpfleakd's walk, 30 frames, no frame pointers"),
    "kernel walk of 5 frames": ("walk", "bpf_get_stack, 5 frames, frame pointers"),
    "kernel walk of 30 frames": ("walk", "bpf_get_stack, 30 frames, frame pointers"),
    "further frame": ("walk", "exact mode, each further frame of a malloc+free pair, no frame pointers"),
    "ten Python frames": ("python_walk", "10 Python frames, more than the same walk without"),
    "untraced mmap": ("space", "mmap+munmap pair: nothing attached"),
    "mmap": ("space", "mmap+munmap pair: bpfleakd, exact"),
    "mmap more": ("space", "mmap+munmap pair: bpfleakd, exact, more than nothing"),
    "mmap elsewhere": ("space", "mmap+munmap pair: bpfleakd traces another process, more than nothing"),
    "mmap in the daemon": ("space", "mmap+munmap pair: processor time of the daemon"),
    "memleak mmap": ("space", "mmap+munmap pair: memleak"),
    "daemon idle memory": ("daemon", "resident, idle"),
    "daemon memory": ("daemon", "resident, 1,000,000 live blocks"),
    "daemon memory after top": ("daemon", "resident, 1,000,000 live blocks, after `top` of all 1,000 sites"),
    "tick": ("daemon", "tick, 1,000 sites"),
    "start": ("daemon", "start of the daemon, attach, first figure in `top`: commands"),
    "start until an answer": ("daemon", "of this: until the daemon answers"),
    "first attach": ("daemon", "attach, first process"),
    "second attach": ("daemon", "attach, second process of the same program: over the socket"),
    "exec to recording": ("exec_latency", "exec to recording, further processes of it"),
    "exec to recording of 50": ("exec_latency", "exec to recording, each of 50 at once"),
    "memory with 100,000 sites": ("growth", "100,000 call sites: daemon resident"),
    "tick with 100,000 sites": ("growth", "100,000 call sites: tick"),
    "tick with 100,000 sites, few changed": ("growth", "100,000 call sites: tick, few call sites changed"),
    "top of 1 M blocks": ("growth", "1,000,000 live blocks: `top`"),
    "top of 10 M blocks": ("growth", "10,000,000 live blocks: `top`"),
    "memory with 500 processes": ("many_processes", "500 traced: resident"),
    "ten sampled": ("many_processes", "10 sampled, 50,000 allocations/s each: processor time of the daemon"),
    "ten sampled memory": ("many_processes", "10 sampled, 50,000 allocations/s each: resident"),
    "bill of 10 GB": ("bill", "processor time of a bill"),
    "scan in one stop": ("scan", "1,000,000 blocks of 1,000 B, in one stop"),
    "scan in short stops": ("scan", "1,000,000 blocks of 1,000 B, stop of 200 ms at most"),
    "scan memory": ("scan", "memory of the child, in one stop"),
    "300 methods of .NET": ("dotnet", "300 methods: processor time of the process"),
    "10,000 methods of .NET": ("dotnet", "10,000 methods: processor time of the process"),
    "one collection of .NET": ("dotnet", "told of 1 collections a second"),
    "ten collections of .NET": ("dotnet", "told of 10 collections a second"),
    "idle": ("idle_auto", "processor time, nothing watched"),
    "watching 1,000": ("idle_auto", "of this: watching 1,000"),
}


def main() -> int:
    """Update every quotation; returns the exit code."""
    for document in documents():
        before = document.read_text()
        after = QUOTATION.sub(lambda found: f"<!--{found[1]}-->{quoted(found[1])}<!--/-->", before)
        if after != before:
            document.write_text(after)
            print(document.relative_to(ROOT))
    return 0


def documents() -> Iterator[Path]:
    """Every document that may have quotations."""
    for pattern in ("*.md", "docs/*.md", "bpf/*.md", "deploy/**/*.md", "examples/**/*.md"):
        yield from sorted(ROOT.glob(pattern))


def quoted(name: str) -> str:
    """The median of a figure, as documents state it. Raises KeyError for a name that is not in QUOTES."""
    benchmark, figure_name = QUOTES[name]
    figures = {figure.name: figure for figure in _results(benchmark).figures}
    return _in_words(figures[figure_name])


@cache
def _results(benchmark: str) -> Benchmark:
    return read_results(benchmark, RESULTS)


def _in_words(figure: Figure) -> str:
    """Two or three digits, in the unit that needs no thousands: 1,871 ns are 1.9 µs."""
    value, unit = figure.median, figure.unit
    if unit == "ns" and value >= 100:
        value, unit = value / 1000, "µs"
    elif unit == "ms" and value >= 1000:
        value, unit = value / 1000, "s"
    decimals = 0 if value >= 20 else 1 if value >= 1 else 2
    return f"{value:,.{decimals}f} {unit}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
