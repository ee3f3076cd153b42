"""What the daemon uses if nothing grows: a thousand sleeping processes, all watched.

It runs in its own PID namespace, where nothing else starts processes. The kernel sends no process events
there, so the daemon scans /proc once a second.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import build_program, cpu_percent, process_cpu_ns
from bench.tracing import RunningDaemon, ended_with_us

_CPU_PERCENT = 1.0
_WATCHING_PERCENT = 0.1
_PROCESSES = 1_000
# By then the daemon reads unchanged processes at the longest intervals.
_SETTLE_S = 120
_SPAN_S = 60
_SPANS = 2


def measure(short: bool) -> Benchmark:
    """Measure a daemon that watches nothing, and one that watches all the sleepers."""
    benchmark = Benchmark("idle_auto", "A host where nothing grows", short)
    processes, settle_s, span_s, spans = (
        (_PROCESSES // 10, 2, 3, 1) if short else (_PROCESSES, _SETTLE_S, _SPAN_S, _SPANS)
    )
    with _sleepers(processes):
        with RunningDaemon(policy={"default": "off"}):
            pass  # the programs are compiled once, and the kernel's caches are warm
        with RunningDaemon(policy={"default": "off"}) as daemon:
            time.sleep(min(settle_s, 20))
            idle = benchmark.add("processor time, nothing watched", "%", cpu_percent(daemon.pid, span_s, 1))
        with RunningDaemon(policy={"default": "auto"}) as daemon:
            began_ns, began_s = process_cpu_ns(daemon.pid), time.monotonic()
            daemon.until(lambda: len(daemon.client.watched()) >= processes or None)
            benchmark.add(f"until {processes:,} processes are watched", "s", [time.monotonic() - began_s])
            time.sleep(settle_s)
            settling = 100 * (process_cpu_ns(daemon.pid) - began_ns) / (time.monotonic() - began_s) / 1e9
            benchmark.add(f"processor time, {processes:,} watched, the first {settle_s} s", "%", [settling])
            steady = benchmark.add(
                f"processor time, {processes:,} watched, settled",
                "%",
                cpu_percent(daemon.pid, span_s, spans),
            )
            share = [percent - idle.median for percent in steady.samples]
            watching = benchmark.add(f"of this: watching {processes:,}", "%", share)
            benchmark.add(f"resident, {processes:,} watched", "MB", [daemon.resident_mb()["VmRSS"]])
            watched = daemon.client.watched()
            benchmark.add(
                "of these taken to grow", "processes", [sum(p.growth_bytes_per_s > 0 for p in watched)]
            )
    benchmark.demand(steady.name, _CPU_PERCENT, steady, "%")
    benchmark.demand(watching.name, _WATCHING_PERCENT, watching, "%")
    benchmark.notes.append(
        "Percent of a core. A tick every five seconds, as long as nothing is traced; a look every second "
        "whether a pid was given out. The memory of a process that does not change is read once a minute."
    )
    return benchmark


@contextlib.contextmanager
def _sleepers(count: int) -> Iterator[None]:
    command = ended_with_us(build_program("sleepers"), count)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sleepers:
        assert sleepers.stdout
        if sleepers.stdout.readline() != b"ready\n":
            raise RuntimeError("the sleepers did not start")
        yield


if __name__ == "__main__":
    if os.getpid() != 1:
        alone = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
        os.execvp(alone[0], (*alone, sys.executable, "-m", "bench.idle_auto", *sys.argv[1:]))
    run_alone(measure)
