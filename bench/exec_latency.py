"""From exec to the first recorded block: which part of a program's start a rule misses."""

from __future__ import annotations

import contextlib
import subprocess
import time

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import build_workload
from bench.tracing import RunningDaemon

_RECORDED_MS = 100

_PROGRAM = "many_sites"


def measure(short: bool) -> Benchmark:
    """Start processes that a rule traces, one by one and many at once."""
    benchmark = Benchmark("exec_latency", "From exec to recording", short)
    repeats, at_once = (3, 5) if short else (30, 50)
    # The path as in the kernel: build/ may be a link.
    rule = {"match": {"exe": str(build_workload(_PROGRAM).resolve())}, "mode": "exact"}
    policy = {"default": "off", "rules": [rule]}
    firsts = []
    with RunningDaemon(policy=policy) as daemon, contextlib.closing(_Started()) as first:
        first.recorded_ms(daemon)  # the programs are compiled once, and the kernel's caches are warm
    for _ in range(1 if short else 5):
        with RunningDaemon(policy=policy) as daemon:
            daemon.wait_ticks(1)  # its own start is over
            with contextlib.closing(_Started()) as first:
                firsts.append(first.recorded_ms(daemon))
    first_of_all = benchmark.add("exec to recording, the first process of a program", "ms", firsts)
    with RunningDaemon(policy=policy) as daemon, contextlib.ExitStack() as programs:
        programs.enter_context(contextlib.closing(_Started())).recorded_ms(daemon)
        delays_ms = []
        for _ in range(repeats):
            with contextlib.closing(_Started()) as program:
                delays_ms.append(program.recorded_ms(daemon))
        one_by_one = benchmark.add("exec to recording, further processes of it", "ms", delays_ms)
        started_s = time.monotonic()
        burst = [programs.enter_context(contextlib.closing(_Started())) for _ in range(at_once)]
        took_ms = [program.recorded_ms(daemon) for program in burst]
        benchmark.add(f"exec to recording, each of {at_once} at once", "ms", took_ms)
        benchmark.add(
            f"until all of {at_once} are recorded, each",
            "ms",
            [1e3 * (time.monotonic() - started_s) / at_once],
        )
    benchmark.demand(one_by_one.name, _RECORDED_MS, one_by_one, "ms")
    benchmark.demand(first_of_all.name, _RECORDED_MS, first_of_all, "ms")
    benchmark.notes.append(
        "By the clock of the daemon's log. An earlier daemon had seen the program: its unwind tables and "
        "probe points are kept. A process of one that nobody has seen waits for its tables for 50 ms at "
        "most; what it allocates before they are there has stacks that follow frame pointers."
    )
    return benchmark


class _Started:
    """A process of the program, just executed."""

    def __init__(self) -> None:
        command = [build_workload(_PROGRAM), "23"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        # Popen returns when exec has succeeded.
        self._executed_s = time.time()

    def recorded_ms(self, daemon: RunningDaemon) -> float:
        """The time from exec to the start of the recording."""
        attached_s = daemon.until(lambda: daemon.attached_at_s(self._process.pid), 30.0)
        return 1e3 * (attached_s - self._executed_s)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    run_alone(measure)
