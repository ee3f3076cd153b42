"""What a malloc+free pair costs a program that is traced: bpfleakd, its floor, and its peers.

The floor is probes that do nothing at the same instructions: what any tool pays that uses uprobes.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict

from bench.figures import Benchmark, Figure
from bench.peers import NotHere, heaptrack, memleak
from bench.probes import empty_probes, heap_points, run_time_counted, run_time_of
from bench.runner import run_alone
from bench.targets import Target, build_workload, own_libc
from bench.tracing import RunningDaemon
from bpfleakd.kernel import bpf
from bpfleakd.kernel.links import close_all
from bpfleakd.kernel.programs import AttachMethod, programs_of

__all__ = ["measure"]

# Of memleak's cost, and of the speed without probes.
_SHARE_OF_MEMLEAK = 0.3
_SPEED_AFTER = 1.2

_NOTHING = "nothing attached"
_FLOOR = "two empty probes"
_FLOOR_WITH_RETURN = "two empty probes and malloc's return"
_MEMLEAK = "memleak"
_HEAPTRACK = "heaptrack (preload)"

_Samples = dict[str, list[float]]


def measure(short: bool) -> Benchmark:
    """Measure all ways in turns."""
    benchmark = Benchmark("pair", "A malloc+free pair in the traced program", short)
    with contextlib.ExitStack() as stack:
        turns = _Turns(stack, short, benchmark)
        for _ in range(1 if short else 9):
            turns.take()
        _report(benchmark, turns)
        blocks_only = Target([build_workload("many_sites"), 1])
        stack.callback(blocks_only.kill)
        _account(benchmark, turns, blocks_only)
        for method in list(AttachMethod)[: 1 if short else None]:
            _crowd(benchmark, turns, method, others=2 if short else 10)
    return benchmark


class _Turns:
    """A target, a daemon for each method, and the samples: one median for each way and turn."""

    def __init__(self, stack: contextlib.ExitStack, short: bool, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        self._missing: set[str] = set()
        self.span_s = 0.01 if short else 0.04
        self.command = [build_workload("churn"), 1]
        self.cost: _Samples = defaultdict(list)
        self.after: _Samples = defaultdict(list)
        self.libc = stack.enter_context(own_libc())
        self.target = Target(self.command, self.libc)
        stack.callback(self.target.kill)
        self.daemons = {
            method: stack.enter_context(RunningDaemon(wait=False, attach_method=method.value))
            for method in AttachMethod
        }
        for daemon in self.daemons.values():
            daemon.wait_ready()
        self.points = heap_points(self.target.pid)

    def take(self) -> None:
        """One turn of each."""
        pid = self.target.pid
        self.cost[_NOTHING].append(self.median_ns())
        self._add(_FLOOR, empty_probes(self.points, pid, at_return=False))
        self._add(_FLOOR_WITH_RETURN, empty_probes(self.points, pid, at_return=True))
        for method, daemon in self.daemons.items():
            self._add(method_name(method), daemon.attached(pid))
        self._add(_MEMLEAK, memleak(pid, self.libc))
        self._add_heaptrack()

    def _add(self, way: str, attached: contextlib.AbstractContextManager) -> None:
        if way in self._missing:
            return
        before_ns = self._best_ns()
        try:
            with attached:
                cost_ns = self.median_ns()
        except NotHere as reason:
            self._leave_out(way, reason)
            return
        self.cost[way].append(cost_ns)
        self.after[way].append(self._best_ns() / before_ns)

    def _add_heaptrack(self) -> None:
        if _HEAPTRACK in self._missing:
            return
        try:
            with heaptrack(self.command) as target:
                self.cost[_HEAPTRACK].append(statistics.median(target.ns_per_round(self.span_s)))
        except NotHere as reason:
            self._leave_out(_HEAPTRACK, reason)

    def _leave_out(self, way: str, reason: NotHere) -> None:
        self._missing.add(way)
        self._benchmark.notes.append(f"{way} is not among the figures: {reason}")

    def median_ns(self) -> float:
        """What a pair costs the target now."""
        return statistics.median(self.target.ns_per_round(self.span_s))

    def _best_ns(self) -> float:
        """The speed of some nanoseconds, where whatever else the machine does shows the most."""
        return min(self.target.ns_per_round(self.span_s / 2, 12))


def method_name(method: AttachMethod) -> str:
    """What a figure calls a method."""
    return f"bpfleakd, exact, {method}"


def _report(benchmark: Benchmark, turns: _Turns) -> None:
    cost = turns.cost
    for way in cost:
        benchmark.add(way, "ns", cost[way])
    reason = "memleak does not run on this machine"
    for method in AttachMethod:
        way = method_name(method)
        ratio = None
        if cost[_MEMLEAK]:
            ratio = _ratio(benchmark, f"{way}, of memleak", cost[way], cost[_MEMLEAK])
        benchmark.demand(f"{way}, of memleak", _SHARE_OF_MEMLEAK, ratio, "", reason)
    for method in AttachMethod:
        way = method_name(method)
        _ratio(benchmark, f"{way}, of two empty probes", cost[way], cost[_FLOOR])
    for method in AttachMethod:
        way = method_name(method)
        after = benchmark.add(f"{way}: after the detach, of before", "", turns.after[way])
        benchmark.demand(after.name, _SPEED_AFTER, after, "")


def _ratio(benchmark: Benchmark, name: str, costs: list[float], of: list[float]) -> Figure:
    return benchmark.add(name, "", [one / other for one, other in zip(costs, of, strict=True)])


def _account(benchmark: Benchmark, turns: _Turns, blocks_only: Target) -> None:
    """Say where the time goes, by the kernel's own count of what the programs take."""
    daemon = turns.daemons[AttachMethod.MULTI]
    with run_time_counted():
        counting_ns = _empty_run_ns(turns)
        pairs = _program_runs_ns(daemon, turns.target, turns.span_s)
        allocations = _program_runs_ns(daemon, blocks_only, turns.span_s)
    entry_ns = allocations["heap_entry"]
    benchmark.add("program at malloc's entry", "ns", [entry_ns - counting_ns])
    benchmark.add("program at malloc's return", "ns", [pairs["heap_exit"] - counting_ns])
    benchmark.add("program at free", "ns", [2 * pairs["heap_entry"] - entry_ns - counting_ns])
    benchmark.notes.append(
        "The programs' times (method multi) are the kernel's own count, less what it counts for a program"
        " that does nothing. The rest of a pair is the kernel's way into the probes and back."
    )


def _crowd(benchmark: Benchmark, turns: _Turns, method: AttachMethod, others: int) -> None:
    """What it costs that the same daemon traces further processes with the same C library."""
    daemon = turns.daemons[method]
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon.attached(turns.target.pid))
        alone_ns = turns.target.ns_per_round(turns.span_s)
        for _ in range(others):
            other = Target(turns.command, turns.libc)
            stack.callback(other.kill)
            stack.enter_context(daemon.attached(other.pid))
        crowded_ns = turns.target.ns_per_round(turns.span_s)
    name = f"{method_name(method)}: each further process that is traced"
    more_ns = [(crowded - alone) / others for alone, crowded in zip(alone_ns, crowded_ns, strict=True)]
    benchmark.add(name, "ns", more_ns)


def _program_runs_ns(daemon: RunningDaemon, target: Target, span_s: float) -> dict[str, float]:
    """Nanoseconds a run of each program while the target works."""
    programs = {
        program.function: bpf.object_get(daemon.pinned(program.function))
        for program in programs_of(AttachMethod.MULTI)
    }
    try:
        with daemon.attached(target.pid):
            before = {name: run_time_of(fd) for name, fd in programs.items()}
            target.ns_per_round(span_s)
            return {name: run_time_of(fd).since(before[name]) for name, fd in programs.items()}
    finally:
        close_all(list(programs.values()))


def _empty_run_ns(turns: _Turns) -> float:
    with empty_probes(turns.points, turns.target.pid, at_return=False) as program:
        before = run_time_of(program)
        turns.target.ns_per_round(turns.span_s)
        return run_time_of(program).since(before)


if __name__ == "__main__":
    run_alone(measure)
