"""A program and its twin: two processes of one program, of which one is traced.

The program has one processor core, its load generator another; a tool shares both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from bench.figures import Benchmark, Figure
from bench.launchers import Launcher
from bench.loads import PROGRAMS, Load, Program, Running
from bench.targets import own_libc, process_cpu_ns

_LOSS_MAX = 0.03
_CORES = os.sched_getaffinity(0)
_PROGRAM_CORE, _LOAD_CORE = min(_CORES), max(_CORES)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Of the work per processor time, what is left with tracing; and the tool's own share of a core."""

    kept: float
    tool: float


def load_at_once(
    other: Running, running: Running, seconds: float, tool_cpu_ns: Callable[[], int], *, once: bool = False
) -> AtOnce:
    """Load both at once, on the same cores: whatever slows the machine meanwhile slows both.

    `once` is of programs whose only load is their whole run.
    """

    def work(one: Running) -> float:
        if once:
            # A second of its load is one of processor time, and the process has ended then.
            return one.load(seconds).per_s
        before_ns = process_cpu_ns(one.pid)
        units = one.load(seconds).units
        return units / (process_cpu_ns(one.pid) - before_ns)

    before_ns, began_s = tool_cpu_ns(), time.monotonic()
    with _bound_to(_LOAD_CORE), ThreadPoolExecutor(2) as pool:
        without, traced = pool.map(work, (other, running))
    used = (tool_cpu_ns() - before_ns) / 1e9 / (time.monotonic() - began_s)
    return AtOnce(traced / without, used)


def p99_ratio(traced: Sequence[Load], without: Sequence[Load], kept: float) -> float | None:
    """The p99 with tracing, as a multiple of that without; None if they have none.

    In units of the mean time between answers, a p99 does not depend on how fast the machine is just now.
    What is left of the throughput, `kept`, says how much longer that unit is with tracing.
    """
    with_it, without_it = _p99_in_means(traced), _p99_in_means(without)
    return with_it / without_it / kept if with_it and without_it else None


def report_inside(
    benchmark: Benchmark,
    of: str,
    kept: Sequence[float],
    tool: Sequence[float],
    ratios: Sequence[float | None],
) -> Figure | None:
    """Add what the sampler inside costs a program, with the demand on its throughput.

    `kept` and `tool` are as in AtOnce, `ratios` from p99_ratio. Returns the figure of the p99, if it has one.
    """
    lost = benchmark.add(f"{of}: throughput lost", "", [1 - one for one in kept])
    benchmark.demand(lost.name, _LOSS_MAX, lost, "")
    benchmark.add(f"{of}: the daemon, of a core", "", tool)
    known = [ratio - 1 for ratio in ratios if ratio is not None]
    return benchmark.add(f"{of}: p99, more than without", "", known) if known else None


@contextlib.contextmanager
def started(program: Program, launcher: Launcher, libraries: Path) -> Iterator[Running]:
    """The program, on its core, with the allocators of `libraries`."""
    variables = {"LD_LIBRARY_PATH": str(libraries), **launcher.variables}
    with contextlib.ExitStack() as stack:
        with _bound_to(_PROGRAM_CORE):
            running = stack.enter_context(program.start(replace(launcher, variables=variables)))
        yield running


def loads(running: Running, number: int, seconds: float) -> list[Load]:
    """So many loads, one after the other."""
    with _bound_to(_LOAD_CORE):
        return [running.load(seconds) for _ in range(number)]


@contextlib.contextmanager
def private_libraries() -> Iterator[Path]:
    """A directory with private copies of the programs' allocators: see own_libc."""
    with own_libc() as libc:
        for name in {program.library for program in PROGRAMS} - {libc.name}:
            for path in sorted(Path("/usr/lib").glob(f"*/{name}"))[:1]:
                shutil.copy(path, libc.parent)
        yield libc.parent


@contextlib.contextmanager
def _bound_to(core: int) -> Iterator[None]:
    """What starts meanwhile runs on this core only: a program, or its load generator, but no tool."""
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, _CORES)


def _p99_in_means(some: Sequence[Load]) -> float | None:
    p99s = [load.p99_ms * load.per_s for load in some if load.p99_ms is not None]
    return statistics.median(p99s) if p99s else None
