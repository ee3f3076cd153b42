"""libbpfleak.so: whether its estimates are right, what an event costs, and what memory it takes.

What a pair costs is in `bench.pair`, and what is left of real programs' speed in `bench.real_programs`.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import defaultdict
from pathlib import Path

from tests.kernel.workloads import Workload

from bench import launchers
from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_program, build_workload
from bench.tracing import RunningDaemon
from bpfleakd.model.process import TracingMode

__all__ = ["measure"]

_TICK_S = 0.25
_RUNS = 200
_RUNS_AT_ONCE = 8
_ESTIMATE_INTERVAL_BYTES = 32 << 10
# At each of 16 stacks two of each size a round, of which one stays: about 1,000 marks a run.
_ESTIMATED = ("sampling", "malloc", 16, 24, 700, 3_000, 20_000)
_ESTIMATE_ROUNDS = 96
# Of 200 right intervals of two standard errors, 95.4 % hold the truth.
_COVERED_SHARE = 0.93
_BIAS_STANDARD_ERRORS = 3.0

# depth.c: its pairs are of 64 bytes, so deep here that a stack has ten frames. One pair in 17 is announced.
_PAIRS = ("depth_tables", 5)
_PAIR_BYTES = 64
_EVENT_INTERVAL_BYTES = 1_024
_EVENT_NS = 1_500.0
_TURNS = 5

_HEAP = ("sampling", "malloc", 16, 100, 1_000)
_HEAP_ROUNDS = 8_000
_MEMORY_SHARE = 0.01


def measure(short: bool) -> Benchmark:
    """Measure all three."""
    benchmark = Benchmark("inside", "The sampler inside the program", short)
    with RunningDaemon(tick_s=_TICK_S) as daemon:
        _estimates(benchmark, daemon, 16 if short else _RUNS)
        _events(benchmark, daemon, 1 if short else _TURNS)
        _memory(benchmark, daemon, 1 if short else _TURNS)
    benchmark.notes.append(
        f"Each run of an estimate is a process of its own, sampled every {_ESTIMATE_INTERVAL_BYTES >> 10}"
        " KiB; its truth is what the program has counted itself. An event is half of what a pair costs more"
        " when it is announced, with its stack of ten frames. Memory is what the same program has resident at"
        " 512 KiB, traced, over what it has without the library."
    )
    return benchmark


def _estimates(benchmark: Benchmark, daemon: RunningDaemon, runs: int) -> None:
    """How often the truth is within two standard errors, and whether the errors cancel out."""
    deviations: dict[str, list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    done = 0
    while done < runs:
        batch = min(_RUNS_AT_ONCE, runs - done)
        for truth, estimate, error, figure in _batch_of_estimates(daemon, batch):
            deviations[figure].append((estimate - truth) / error)
            ratios[figure].append(estimate / truth)
        done += batch
    for figure, of_figure in deviations.items():
        benchmark.add(f"{figure}: the estimate, of the truth", "", ratios[figure])
        missed = statistics.fmean(abs(one) > 2 for one in of_figure)
        benchmark.add(f"{figure}: runs within two standard errors", "", [1 - missed])
        name = f"{figure}: runs that miss the truth by more than two standard errors"
        benchmark.demand(name, 1 - _COVERED_SHARE, benchmark.add(name, "", [missed]), "")
        bias = abs(statistics.fmean(ratios[figure]) - 1)
        of_chance = statistics.stdev(ratios[figure]) / math.sqrt(len(of_figure))
        name = f"{figure}: bias, in standard errors of the mean of {len(of_figure)} runs"
        benchmark.demand(name, _BIAS_STANDARD_ERRORS, benchmark.add(name, "", [bias / of_chance]), "")


def _batch_of_estimates(daemon: RunningDaemon, count: int) -> list[tuple[float, float, float, str]]:
    """Truth, estimate, standard error and figure of so many processes at once."""
    launcher = launchers.inside(Path(), _ESTIMATE_INTERVAL_BYTES)
    command = launcher.command([build_workload(_ESTIMATED[0]), *_ESTIMATED[1:]])
    found = []
    with contextlib.ExitStack() as stack:
        programs = [Workload(command) for _ in range(count)]
        for program in programs:
            stack.callback(program.kill)
            stack.enter_context(daemon.attached(program.pid, TracingMode.INSIDE))
        for program in programs:
            program.step(_ESTIMATE_ROUNDS)
        daemon.wait_ticks(2)
        for program in programs:
            report, truth = daemon.client.report(program.pid), program.ledger()
            # A budget of names misses no block: a busy machine may exceed it.
            if missed := {why: n for why, n in report.losses.items() if n and why != "names_over_budget"}:
                raise RuntimeError(f"losses: {missed}")
            process = report.process
            found.append((truth["live_bytes"], process.live_bytes, process.live_bytes_stderr, "live bytes"))
            found.append((truth["live_count"], process.live_count, process.live_count_stderr, "live blocks"))
    return found


def _events(benchmark: Benchmark, daemon: RunningDaemon, turns: int) -> None:
    """What it costs to announce a block, or its end."""
    launcher = launchers.inside(Path(), _EVENT_INTERVAL_BYTES)
    target = Target(launcher.command([build_program(_PAIRS[0]), *_PAIRS[1:]]))
    announced = -math.expm1(-_PAIR_BYTES / _EVENT_INTERVAL_BYTES)
    samples = []
    with contextlib.closing(target):
        for _ in range(turns):
            alone_ns = statistics.median(target.ns_per_round())
            with daemon.attached(target.pid, TracingMode.INSIDE):
                traced_ns = statistics.median(target.ns_per_round())
            samples.append((traced_ns - alone_ns) / announced / 2)
    figure = benchmark.add("an event, with its stack", "ns", samples)
    benchmark.demand(figure.name, _EVENT_NS, figure, "ns")


def _memory(benchmark: Benchmark, daemon: RunningDaemon, turns: int) -> None:
    """What sampled blocks and their marks take of a heap of small blocks, half of them freed."""
    command = [build_workload(_HEAP[0]), *_HEAP[1:]]
    samples = []
    for _ in range(turns):
        with contextlib.ExitStack() as stack:
            without = Workload(list(map(str, command)))
            stack.callback(without.kill)
            inside = Workload(launchers.inside(Path()).command(command))
            stack.callback(inside.kill)
            stack.enter_context(daemon.attached(inside.pid, TracingMode.INSIDE))
            for program in (without, inside):
                program.step(_HEAP_ROUNDS)
            samples.append(_resident_kib(inside.pid) / _resident_kib(without.pid) - 1)
    figure = benchmark.add("memory, more than without", "", samples)
    benchmark.demand(figure.name, _MEMORY_SHARE, figure, "")


def _resident_kib(pid: int) -> int:
    """Memory of its own that a process has resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


if __name__ == "__main__":
    run_alone(measure)
