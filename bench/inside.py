"""libbpfleak.so: whether its estimates are right, what an event costs, and how much memory it uses.

`bench.pair` measures the cost of a pair, `bench.real_programs` the remaining speed of real programs.
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

_TICK_S = 0.25
_RUNS = 200
# Names, and the kernel's mappings: the blocks of malloc are complete without them.
_NO_BLOCKS_MISSED = ("names_over_budget", "event_full")
_RUNS_AT_ONCE = 8
_ESTIMATE_INTERVAL_BYTES = 32 << 10
# Sizes and rounds: in each round, each of 16 stacks allocates a block of each size; every second one is
# freed.
_ESTIMATED = {
    "100 to 1,000 bytes": ((100, 300, 1_000), 1_200),
    # There is one sample of 24-byte blocks in two runs, which stands for 1,365 of them.
    "24 to 20,000 bytes": ((24, 700, 3_000, 20_000), 96),
}
_BLOCKS_DEMANDED = "100 to 1,000 bytes"
# Of 200 correct intervals of two standard errors, 95.4 % contain the truth.
_COVERED_SHARE = 0.93
_BIAS_STANDARD_ERRORS = 3.0

# depth.c: its pairs have 64 bytes, and this depth gives a stack of ten frames. One pair in 17 is announced.
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
        " KiB; its truth is what the program has counted itself. Where the smallest blocks have no sample in"
        " most runs, the standard error of the number of blocks is too small, so nothing is demanded of it."
        " An event is half of what a pair costs more when it is announced, with its stack of ten frames."
        " Memory is what the same program has resident at 512 KiB, traced, over what it has without the"
        " library."
    )
    return benchmark


def _estimates(benchmark: Benchmark, daemon: RunningDaemon, runs: int) -> None:
    """How often the truth is within two standard errors, and whether the errors cancel out."""
    for case in _ESTIMATED:
        deviations: dict[str, list[float]] = defaultdict(list)
        ratios: dict[str, list[float]] = defaultdict(list)
        for done in range(0, runs, _RUNS_AT_ONCE):
            batch = _batch_of_estimates(daemon, case, min(_RUNS_AT_ONCE, runs - done))
            for figure, truth, estimate, error in batch:
                deviations[figure].append((estimate - truth) / error)
                ratios[figure].append(estimate / truth)
        for figure in ratios:
            is_demanded = figure == "live bytes" or case == _BLOCKS_DEMANDED
            _report(benchmark, f"{case}, {figure}", deviations[figure], ratios[figure], is_demanded)


def _report(
    benchmark: Benchmark, name: str, deviations: list[float], ratios: list[float], is_demanded: bool
) -> None:
    """`deviations` in standard errors, and what the estimates are of the truth."""
    benchmark.add(f"{name}: the estimate, of the truth", "", ratios)
    missed = statistics.fmean(abs(one) > 2 for one in deviations)
    off = benchmark.add(f"{name}: share of runs off by more than two standard errors", "", [missed])
    if is_demanded:
        benchmark.demand(off.name, 1 - _COVERED_SHARE, off, "")
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    bias = abs(statistics.fmean(ratios) - 1) / error
    mean = benchmark.add(f"{name}: bias, in standard errors of the mean of all runs", "", [bias])
    benchmark.demand(mean.name, _BIAS_STANDARD_ERRORS, mean, "")


def _batch_of_estimates(
    daemon: RunningDaemon, case: str, count: int
) -> list[tuple[str, float, float, float]]:
    """Figure, truth, estimate and standard error of this many concurrent processes."""
    sizes, rounds = _ESTIMATED[case]
    launcher = launchers.inside(Path(), _ESTIMATE_INTERVAL_BYTES)
    command = launcher.command([build_workload("sampling"), "malloc", 16, *sizes])
    found = []
    with contextlib.ExitStack() as stack:
        programs = []
        for _ in range(count):
            programs.append(Workload(command))
            stack.callback(programs[-1].kill)
            stack.enter_context(daemon.attached(programs[-1].pid, TracingMode.INSIDE))
        for program in programs:
            program.step(rounds)
        daemon.wait_ticks(2)
        for program in programs:
            report, truth = daemon.client.report(program.pid), program.ledger()
            if missed := {why: n for why, n in report.losses.items() if n and why not in _NO_BLOCKS_MISSED}:
                raise RuntimeError(f"losses: {missed}")
            process = report.process
            found.append(("live bytes", truth["live_bytes"], process.live_bytes, process.live_bytes_stderr))
            found.append(("live blocks", truth["live_count"], process.live_count, process.live_count_stderr))
    return found


def _events(benchmark: Benchmark, daemon: RunningDaemon, turns: int) -> None:
    """The cost of announcing a block, or its end."""
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
    """The memory that sampled blocks and their marks take in a heap of small blocks, half of them freed."""
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
    """A process' private resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:")))


if __name__ == "__main__":
    run_alone(measure)
