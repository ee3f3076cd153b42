"""What it costs to read a Go program's own records: its heap profile and its goroutines."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import build_program
from bpfleakd.process.files.process_code import open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.runtimes.go.program import GoProgram, find_go
from bpfleakd.tracing.go.profile import GoProfile

_BUCKETS = 50_000
_GOROUTINES = 100_000
_READ_S = 0.2
_IDLE_MS = 1.0
_TIMES, _IDLE_TIMES = 9, 99


def measure(short: bool) -> Benchmark:
    """Read a profile of many stacks for the first time, again, and when nothing has changed."""
    benchmark = Benchmark("go_profile", "The books of a Go program", short)
    buckets, goroutines = (2_000, 2_000) if short else (_BUCKETS, _GOROUTINES)
    with _program(buckets, goroutines) as process, _opened(process.pid) as program:
        opening = [_took_s(partial(_open_and_close, process.pid)) for _ in range(_TIMES)]
        benchmark.add("attaching: the runtime's variables are found and checked", "s", opening)
        first = benchmark.add(
            f"{buckets:,} buckets, read for the first time",
            "s",
            [_took_s(program.heap_profile().buckets) for _ in range(_TIMES)],
        )
        profile = GoProfile(program, process.pid, time.monotonic_ns)
        keys, _counters = profile.read_now()
        if len(keys) < buckets:
            raise RuntimeError(f"{len(keys):,} stacks instead of {buckets:,}")
        again = []
        for _ in range(_TIMES):
            _ask(process, "collect")
            again.append(_took_s(profile.read_now))
        benchmark.add(f"{buckets:,} buckets, after a collection", "s", again)
        profile.read_now()
        idle = [1e3 * _took_s(profile.read_now) for _ in range(_IDLE_TIMES)]
        nothing = benchmark.add("nothing was collected since the last time", "ms", idle)
        listed = program.goroutines()
        assert listed is not None
        counting = [_took_s(listed.read) for _ in range(_TIMES)]
        benchmark.add(f"{goroutines:,} goroutines", "s", counting)
    benchmark.demand(first.name, _READ_S, first, "s")
    benchmark.demand(nothing.name, _IDLE_MS, nothing, "ms")
    benchmark.notes.append(
        "Every bucket has a stack of its own, of 22 frames. The program pays nothing: its memory is read from"
        " outside. Goroutines and buckets are read in no more than a hundredth and a fiftieth of the time."
    )
    return benchmark


@contextlib.contextmanager
def _program(buckets: int, goroutines: int) -> Iterator[subprocess.Popen[str]]:
    command = [build_program("many_stacks"), str(buckets), str(goroutines)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            _answer(process)
            yield process
        finally:
            process.kill()


def _ask(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()
    _answer(process)


def _answer(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "done\n":
        raise RuntimeError("the program has ended")


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[GoProgram]:
    program = find_go(open_code(pid, read_mappings(pid))).program
    assert program is not None
    with contextlib.closing(program):
        yield program


def _open_and_close(pid: int) -> None:
    with _opened(pid):
        pass


def _took_s(do: Callable[[], object]) -> float:
    began_s = time.monotonic()
    do()
    return time.monotonic() - began_s


if __name__ == "__main__":
    run_alone(measure)
