"""What address space changes cost a traced program, another program, and the daemon.

The daemon learns of each change by tracepoints, which run for every process of the machine while one is
traced. memleak has probes in the C library's mmap and munmap, and none for mprotect.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from bench.figures import Benchmark, Figure
from bench.peers import NotHere, memleak
from bench.runner import run_alone
from bench.targets import Target, build_program, own_libc, process_cpu_ns
from bench.tracing import RunningDaemon

_SHARE_OF_MEMLEAK = 0.3

_NOTHING = "nothing attached"
_TRACED = "bpfleakd, exact"
_BYSTANDER = "bpfleakd traces another process"
_MEMLEAK = "memleak"
_WORK = {"pair": "mmap+munmap pair", "commit": "mprotect pair, to use and back"}

# Two changes each; the ring holds four times as many between two ticks.
_PAIRS = 2_000


class _Turns:
    """Two programs that do the same, a daemon, and the samples: one for each way and turn."""

    def __init__(self, daemon: RunningDaemon, libc: Path, mode: str, stack: contextlib.ExitStack) -> None:
        self._daemon = daemon
        self._libc = libc
        self._missing = ""
        self.cost: dict[str, list[float]] = defaultdict(list)
        self.target, self.other = (Target([build_program("space"), mode], libc) for _ in range(2))
        stack.callback(self.target.kill)
        stack.callback(self.other.kill)

    def take(self, *, with_memleak: bool) -> None:
        """One turn of each."""
        self._note(_NOTHING)
        with self._daemon.attached(self.target.pid):
            self._note(_TRACED)
        with self._daemon.attached(self.other.pid):
            self._note(_BYSTANDER)
        if with_memleak and not self._missing:
            try:
                with memleak(self.target.pid, self._libc):
                    self._note(_MEMLEAK)
            except NotHere as reason:
                self._missing = f"memleak is not among the figures: {reason}"

    @property
    def notes(self) -> list[str]:
        """The reasons for missing measurements."""
        return [self._missing] if self._missing else []

    def _note(self, way: str) -> None:
        # As many as the ring holds: further changes between two ticks would be lost, which costs less.
        self.target.cpu_ns(_PAIRS // 10)
        samples = []
        for _ in range(3):
            samples.append(self.target.cpu_ns(_PAIRS) / _PAIRS)
            self._daemon.wait_ticks(1)
        self.cost[way].append(statistics.median(samples))


def measure(short: bool) -> Benchmark:
    """Measure all ways in turns."""
    benchmark = Benchmark("space", "A change of the address space in the traced program", short)
    with contextlib.ExitStack() as stack:
        libc = stack.enter_context(own_libc())
        daemon = stack.enter_context(RunningDaemon(tick_s=0.2))
        for mode, work in _WORK.items():
            turns = _Turns(daemon, libc, mode, stack)
            for _ in range(1 if short else 7):
                turns.take(with_memleak=mode == "pair")
            _report(benchmark, work, turns.cost)
            benchmark.notes += turns.notes
            _count_daemons_share(benchmark, daemon, turns.target, work)
    return benchmark


def _report(benchmark: Benchmark, work: str, cost: Mapping[str, list[float]]) -> None:
    for way, samples in cost.items():
        benchmark.add(f"{work}: {way}", "ns", samples)
    for way in (_TRACED, _BYSTANDER):
        more = [traced - alone for traced, alone in zip(cost[way], cost[_NOTHING], strict=True)]
        benchmark.add(f"{work}: {way}, more than nothing", "ns", more)
    if work != _WORK["pair"]:
        return
    ratio: Figure | None = None
    name = f"{work}: {_TRACED}, of memleak"
    if _MEMLEAK in cost:
        pairs = zip(cost[_TRACED], cost[_MEMLEAK], strict=True)
        ratio = benchmark.add(name, "", [traced / peer for traced, peer in pairs])
    benchmark.demand(name, _SHARE_OF_MEMLEAK, ratio, "", "memleak does not run on this machine")


def _count_daemons_share(benchmark: Benchmark, daemon: RunningDaemon, target: Target, work: str) -> None:
    """The daemon's CPU time for the changes it received, and the changes that it missed."""
    with daemon.attached(target.pid):
        idle_ns = _daemon_ns(daemon)
        before_ns = process_cpu_ns(daemon.pid)
        target.step(_PAIRS)
        daemon.wait_ticks(2)
        busy_ns = process_cpu_ns(daemon.pid) - before_ns
        lost = daemon.client.report(target.pid, limit=1).losses["event_full"]
    benchmark.add(f"{work}: processor time of the daemon", "ns", [max(0, busy_ns - idle_ns) / _PAIRS])
    benchmark.add(f"{work}: changes not seen, of {2 * _PAIRS:,} between two ticks", "", [lost])


def _daemon_ns(daemon: RunningDaemon) -> int:
    before_ns = process_cpu_ns(daemon.pid)
    daemon.wait_ticks(2)
    return process_cpu_ns(daemon.pid) - before_ns


if __name__ == "__main__":
    run_alone(measure)
