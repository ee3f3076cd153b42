"""Released programs that have been traced inside for long: what is left of their speed, and their p99.

Of each program some pairs of processes run, and one of each pair is traced. They get loads in turns: first
for as long as the sampler needs to adapt to them, then those that count. What they do per processor time is
compared by loads of both at once. A pair differs from the next by several percent, in its p99 above all,
since addresses and hashes are random: the figures of a pair are one sample.

A daemon that has traced programs for ten minutes reads them every five seconds. This one does so from the
start.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from bench import launchers, twins
from bench.answers import place_in_report
from bench.figures import Benchmark, Table, with_middle
from bench.launchers import Launcher
from bench.loads import PROGRAMS, Load, Program, Running
from bench.runner import run_alone
from bench.tracing import SETTLED_TICK_S, RunningDaemon
from bpfleakd.model.process import TracingMode

_PAIRS = 6
# Four ticks: from the second on, the daemon knows what announcements cost.
_ADAPTING_S = 20.0
_ROUNDS, _LOADS_AT_ONCE = 10, 3
_LOAD_S = 0.5
_P99_MORE_MAX = 0.05


@dataclass(frozen=True, slots=True)
class _Found:
    """Of a pair: the part of the work that is left, the ratio of the p99s, and the place of the leak.

    `tool` is the daemon's share of a core while both were under load.
    """

    kept: float
    p99_ratio: float | None
    place: int | None
    tool: float


def measure(short: bool) -> Benchmark:
    """Measure all programs that go on after a load."""
    benchmark = Benchmark("settled", "Real programs that have been traced for long", short)
    number = 1 if short else _PAIRS
    rows = []
    with RunningDaemon(tick_s=SETTLED_TICK_S) as daemon, twins.private_libraries() as libraries:
        for program in PROGRAMS:
            if not program.once:
                pairs = [_pair(program, daemon, libraries, short=short) for _ in range(number)]
                rows.append(_report(benchmark, program, pairs))
    head = ("program", "work per processor time", "p99", "the function that leaks")
    benchmark.tables.append(Table("Compared with as many that are not traced", head, tuple(rows)))
    benchmark.notes.append(
        f"There are {number} pairs of each program; the middle half of them is in parentheses. The daemon"
        f" reads every {SETTLED_TICK_S:g} s, as it does by itself after ten minutes."
    )
    return benchmark


def _pair(program: Program, daemon: RunningDaemon, libraries: Path, *, short: bool) -> _Found:
    """Start a pair and measure it."""
    with (
        twins.started(program, Launcher(), libraries) as other,
        twins.started(program, launchers.inside(libraries), libraries) as traced,
    ):
        # Before its first answer, it may not even be the program yet, but what starts it.
        _take_turns(other, traced, 1)
        daemon.client.attach(traced.pid, TracingMode.INSIDE)
        daemon.wait_calm()
        until_s = time.monotonic() + (0 if short else _ADAPTING_S)
        while time.monotonic() < until_s:
            _take_turns(other, traced, 2)
        without, with_it = _take_turns(other, traced, 1 if short else _ROUNDS)
        at_once = [
            twins.load_at_once(other, traced, _LOAD_S, daemon.cpu_ns)
            for _ in range(1 if short else _LOADS_AT_ONCE)
        ]
        kept = statistics.median(one.kept for one in at_once)
        return _Found(
            kept,
            twins.p99_ratio(with_it, without, kept),
            place_in_report(daemon.client.report(traced.pid), program.leaks),
            statistics.fmean(one.tool for one in at_once),
        )


def _take_turns(other: Running, traced: Running, rounds: int) -> tuple[list[Load], list[Load]]:
    """The loads of both. In every second round the traced one is first."""
    loads: dict[int, list[Load]] = {other.pid: [], traced.pid: []}
    for number in range(rounds):
        for one in (traced, other) if number % 2 else (other, traced):
            loads[one.pid] += twins.loads(one, 1, _LOAD_S)
    return loads[other.pid], loads[traced.pid]


def _report(benchmark: Benchmark, program: Program, pairs: list[_Found]) -> tuple[str, ...]:
    """Add the figures of a program; returns its row of the table."""
    kept, ratios = [pair.kept for pair in pairs], [pair.p99_ratio for pair in pairs]
    more = twins.report_inside(benchmark, program.name, kept, [pair.tool for pair in pairs], ratios)
    if more:
        benchmark.demand(more.name, _P99_MORE_MAX, more, "")
    named = sum(pair.place == 1 for pair in pairs)
    return (
        program.name,
        with_middle(kept),
        with_middle([1 + one for one in more.samples]) if more else "none",
        f"no. 1 in {named} of {len(pairs)}",
    )


if __name__ == "__main__":
    run_alone(measure)
