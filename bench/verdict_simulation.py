"""How often verdicts are wrong, and how long leaks go unnoticed: simulated call sites, and a plot.

`python -m bench.verdict_simulation` writes docs/verdicts.svg and the tables in docs/verdicts.md. The seed is
fixed: the same code gives the same picture.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from bench import simulated_sites as sites
from bpfleakd.model.verdict import Verdict

LEAKS: Mapping[str, sites.Make] = {
    "1 block/s": sites.leak(1),
    "1 block in 5 s": sites.leak(0.2),
    "1 block/s among 2,000 x 1 ms": sites.mixed(sites.leak(1), sites.churn(2000, 0.001)),
    "1 block/s among 2,000 x 200 ms": sites.mixed(sites.leak(1), sites.churn(2000, 0.2)),
    "5 blocks/s among 500 x 3 s": sites.mixed(sites.leak(5), sites.churn(500, 3)),
    "5 blocks/s among 250 x 8 s": sites.mixed(sites.leak(5), sites.churn(250, 8)),
    "5 blocks/s beside a queue of 10 s": sites.mixed(sites.leak(5), sites.queue(200, 10)),
    "100 blocks every 15 s": sites.steps(15),
    "10 blocks/s beside a cache, 63% full after 30 s": sites.mixed(sites.leak(10), sites.warm_up(3000, 30)),
    "10 blocks/s, one of 8 recorded": sites.sampled(sites.leak(10, 64), 512),
    "10 blocks/s, one of 64 recorded": sites.sampled(sites.leak(10, 64), 4096),
    "queue of 300/s that loses 200/s, one of 64 recorded": sites.sampled(sites.backlog(300, 2 / 3, 64), 4096),
}
CLEAN: Mapping[str, sites.Make] = {
    "lives of 10 ms": sites.churn(500, 0.01),
    "lives of 5 s": sites.churn(300, 5),
    "lives of 60 s, 100/s": sites.sessions(100, 60),
    "lives of 60 s, 5/s": sites.sessions(5, 60),
    "lives of 120 s, 5/s": sites.sessions(5, 120),
    "lives of 100 s, seen from their middle": sites.sessions(100, 100, attached_after_s=600),
    "cache that fills for 40 s": sites.cache(100, 40),
    "cache that fills for 90 s": sites.cache(100, 90),
    "cache, 63% full after 60 s": sites.warm_up(30000, 60),
    "cache, 63% full after 120 s": sites.warm_up(30000, 120),
    "cache, 1,000 requests/s by Zipf's law": sites.zipf_cache(100_000, 1_000),
    "the same, seen after 300 s": sites.zipf_cache(100_000, 1_000, attached_after_s=300),
    "LRU of 25 s": sites.lru(100, 25),
    "LRU of 20 s, 20 blocks recorded": sites.sampled(sites.lru(64, 20, size_bytes=64), 4096),
    "lives of 60 s, 16 blocks recorded": sites.sampled(sites.sessions(17, 60, size_bytes=64), 4096),
    "queue of 10 s": sites.queue(200, 10),
    "queue of 60 s": sites.queue(200, 60),
    "warm-up, 20 s": sites.warm_up(3000, 20),
}
_AT_S = (20.0, 30.0, 40.0, 45.0, 50.0, 55.0, 60.0, 70.0, 80.0, 90.0, 120.0, 150.0, 180.0, 240.0, 300.0)
_SEED = 23
# The time to a verdict, by size and rate of the lost blocks.
_SIZES_BYTES = (16, 50, 256, 1024, 16384)
_RATES_PER_S = (0.1, 1.0, 10.0, 100.0)
_TIMES_S = (50.0, 60.0, 80.0, 100.0, 150.0, 200.0, 300.0, 450.0, 600.0, 900.0, 1200.0, 1800.0)
_MOST = 0.9
_DOCS = Path(__file__).parents[1] / "docs"
_BEGIN, _END = "<!-- simulation: begin -->\n", "<!-- simulation: end -->\n"

_COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#17becf",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#393b79",
    "#ad494a",
    "#637939",
    "#8c6d31",
    "#3182bd",
    "#e6550d",
    "#31a354",
    "#756bb1",
)
_WIDTH, _HEIGHT, _LEFT, _TOP = 460, 240, 60, 40
_PANEL = _HEIGHT + 90
_LEGEND_WIDTH = 270


def shares_called_leak(make: sites.Make, number: int, at_s: Sequence[float], seed: int) -> list[float]:
    """The share of this many sites, each alone in its process, that is called a leak, at each time."""
    random = np.random.default_rng(seed)
    verdicts = sites.classified([make(random, at_s[-1]) for _ in range(number)], at_s, are_alone=True)
    return [sum(site.verdict is Verdict.LEAK for site in of_time) / number for of_time in verdicts]


def time_to_verdict_s(per_s: float, size_bytes: int, number: int = 10) -> float | None:
    """When nine of ten leaks of such blocks are called a leak; None: later than all of `_TIMES_S`."""
    shares = shares_called_leak(sites.leak(per_s, size_bytes), number, _TIMES_S, _SEED)
    return next((at_s for at_s, share in zip(_TIMES_S, shares, strict=True) if share >= _MOST), None)


def _times_table() -> str:
    lines = [
        "",
        "The time until nine of ten leaks are called so, by the size and the rate of their blocks:",
        "",
        f"| | {' | '.join(f'{per_s:g} blocks/s' for per_s in _RATES_PER_S)} |",
        f"|---|{'---|' * len(_RATES_PER_S)}",
    ]
    for size_bytes in _SIZES_BYTES:
        times_s = [time_to_verdict_s(per_s, size_bytes) for per_s in _RATES_PER_S]
        cells = [
            f"{per_s * size_bytes:,.0f} B/s: {'later than 30 min' if at_s is None else f'{at_s:.0f} s'}"
            for per_s, at_s in zip(_RATES_PER_S, times_s, strict=True)
        ]
        lines.append(f"| {size_bytes:,} B | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Simulate, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=20, help="of each kind (%(default)s)")
    arguments = parser.parse_args()
    panels = []
    for title, makes in (("Leaks that are found", LEAKS), ("False alarms", CLEAN)):
        shares = {}
        for name, make in makes.items():
            shares[name] = shares_called_leak(make, arguments.sites, _AT_S, _SEED)
            print(f"{name:44}", *(f"{share:.2f}" for share in shares[name]), file=sys.stderr, flush=True)
        panels.append((title, shares))
    (_DOCS / "verdicts.svg").write_text(_drawn(panels))
    document = _DOCS / "verdicts.md"
    before, _, rest = document.read_text().partition(_BEGIN)
    _old, _, after = rest.partition(_END)
    document.write_text(f"{before}{_BEGIN}{_tables(panels, arguments.sites)}{_times_table()}{_END}{after}")
    return 0


def _tables(panels: Sequence[tuple[str, Mapping[str, Sequence[float]]]], number: int) -> str:
    shown = (50.0, 60.0, 70.0, 90.0, 120.0, 180.0, 300.0)
    lines = [
        f"The share of {number} made-up call sites of each kind that are called `leak` after so many seconds:"
    ]
    for title, shares in panels:
        lines += ["", f"| {title} | {' | '.join(f'{at_s:.0f} s' for at_s in shown)} |"]
        lines.append(f"|---|{'---|' * len(shown)}")
        for name, series in shares.items():
            cells = (f"{series[_AT_S.index(at_s)]:.0%}" for at_s in shown)
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _drawn(panels: Sequence[tuple[str, Mapping[str, Sequence[float]]]]) -> str:
    """An SVG with the panels below each other."""
    width, height = _LEFT + _WIDTH + _LEGEND_WIDTH, _PANEL * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for index, (title, shares) in enumerate(panels):
        parts += [
            f'<g transform="translate({_LEFT},{_TOP + index * _PANEL})">',
            *_panel(title, shares),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, shares: Mapping[str, Sequence[float]]) -> list[str]:
    parts = [f'<text x="0" y="-14" font-size="14" font-weight="bold">{escape(title)}</text>']
    for tenth in range(0, 11, 2):
        y = _HEIGHT * (1 - tenth / 10)
        parts.append(f'<path d="M0,{y:.1f}H{_WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{tenth * 10} %</text>')
    for at_s in range(0, 301, 60):
        x = _x(at_s)
        parts.append(f'<path d="M{x:.1f},0V{_HEIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT + 16}" text-anchor="middle">{at_s} s</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT + 32}" text-anchor="middle">since the attach</text>')
    for index, (name, series) in enumerate(shares.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(
            f"{_x(at_s):.1f},{_HEIGHT * (1 - share):.1f}" for at_s, share in zip(_AT_S, series, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = 8 + 18 * index
        parts.append(f'<path d="M{_WIDTH + 14},{y}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{_WIDTH + 38}" y="{y + 4}">{escape(name)}</text>')
    return parts


def _x(at_s: float) -> float:
    return _WIDTH * at_s / 300


if __name__ == "__main__":
    sys.exit(main())
