"""What a malloc+free pair costs a traced program: under bpfleakd, at the least possible, and under other
tools.

The least possible is the cost of empty probes at the same instructions, which every tool with uprobes pays.
The pair is made ten frames deep, in code without frame pointers, by one thread and by two at once.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import launchers
from bench.figures import Benchmark, Figure, Panel, Plot, Series
from bench.launchers import Launcher
from bench.peers import NotHere, bpftrace, memleak
from bench.probes import empty_probes, heap_points, run_time_counted, run_time_of
from bench.runner import run_alone
from bench.targets import Target, build_program, build_workload, own_libc
from bench.tracing import RunningDaemon
from bpfleakd.kernel import bpf
from bpfleakd.kernel.probes.links import close_all
from bpfleakd.kernel.programs import AttachMethod, programs_of
from bpfleakd.model.process import TracingMode

_EXACT_OF_MEMLEAK = 0.25
_SAMPLED_OF_MEMLEAK = 0.10
_SAMPLED_OF_FLOOR = 1.15
# As a factor of the speed without probes.
_SPEED_AFTER = 1.2

_FRAMES = 10
# The frames of depth.c outside its chain of calls.
_FRAMES_ALWAYS = 5
_THREADS = (1, 2)
_TURNS = {1: 5, 2: 3}
_TICK_S = 0.25

_NOTHING = "nothing attached"
_FLOOR = "two empty probes"
_FLOOR_WITH_RETURN = "two empty probes and malloc's return"
_MEMLEAK = "memleak"
_MEMLEAK_EVERY = 100
_MEMLEAK_SAMPLED = f"memleak -s {_MEMLEAK_EVERY}"
_BPFTRACE = "bpftrace, three probes"
_PRELOADED = "libbpfleak.so, no daemon"
_INSIDE = "bpfleakd, inside"
# The limit on a pair's additional cost, ns.
_INSIDE_MORE_NS = {_PRELOADED: 3.0, _INSIDE: 6.0}
_STARTED: dict[str, Callable[[Path], Launcher]] = {
    "heaptrack": launchers.heaptrack,
    "jemalloc": partial(launchers.jemalloc, profiled=False),
    "jemalloc, its sampled profile": partial(launchers.jemalloc, profiled=True),
    "tcmalloc": partial(launchers.tcmalloc, every=None),
    "tcmalloc, its sampled profile": partial(launchers.tcmalloc, every=False),
    "tcmalloc, its heap profiler": partial(launchers.tcmalloc, every=True),
    "valgrind (memcheck)": launchers.valgrind,
}

_Samples = dict[str, list[float]]
_Daemons = dict[AttachMethod, RunningDaemon]


def measure(short: bool) -> Benchmark:
    """Measure all ways in turns."""
    benchmark = Benchmark("pair", "A malloc+free pair in the traced program", short)
    with contextlib.ExitStack() as stack:
        daemons = {
            method: stack.enter_context(RunningDaemon(wait=False, attach_method=method.value, tick_s=_TICK_S))
            for method in AttachMethod
        }
        for daemon in daemons.values():
            daemon.wait_ready()
        for threads in _THREADS[: 1 if short else None]:
            turns = _Turns(stack, daemons, threads, short)
            turns.check_depth()
            for _ in range(1 if short else _TURNS[threads]):
                turns.take()
            _report(benchmark, turns)
            if threads == 1:
                _account(benchmark, turns)
                for method in list(AttachMethod)[: 1 if short else None]:
                    _crowd(benchmark, turns, method, others=2 if short else 10)
    _plot(benchmark)
    benchmark.notes.append(
        f"All pairs are made {_FRAMES} frames deep, in code without frame pointers: bpfleakd walks and keeps"
        " all of them, memleak and bpftrace what frame pointers lead to. By two threads: the processor time"
        " of both, for each pair. Allocators with profilers of their own take the place of the C library's."
    )
    return benchmark


class _Turns:
    """A target with this many threads, and the samples: one median for each way and turn."""

    def __init__(self, stack: contextlib.ExitStack, daemons: _Daemons, threads: int, short: bool) -> None:
        self.daemons = daemons
        self.threads = threads
        self.prefix = "" if threads == 1 else f"{threads} threads: "
        self.missing: dict[str, str] = {}
        self.span_s = 0.01 if short else 0.04
        self.command = [build_program("depth_tables"), _FRAMES - _FRAMES_ALWAYS, threads]
        self.cost: _Samples = defaultdict(list)
        self.after: _Samples = defaultdict(list)
        self.libc = stack.enter_context(own_libc())
        self.target = Target(self.command, self.libc)
        stack.callback(self.target.kill)
        self.points = heap_points(self.target.pid)

    def check_depth(self) -> None:
        """Check that a pair has the stated depth."""
        daemon = next(iter(self.daemons.values()))
        with daemon.attached(self.target.pid):
            self.target.step(100)
            (site,) = daemon.until(lambda: daemon.client.report(self.target.pid).sites or None)
        # malloc itself is the first frame.
        depth = sum(not frame.inlined for frame in site.stack) - 1
        if depth != _FRAMES or site.truncated:
            raise RuntimeError(f"a stack of {depth} frames instead of {_FRAMES}, {site.truncated}")

    def take(self) -> None:
        """One turn of each."""
        pid = self.target.pid
        self.cost[_NOTHING].append(self._median_ns(self.target))
        self._add(_FLOOR, empty_probes(self.points, pid, at_return=False))
        self._add(_FLOOR_WITH_RETURN, empty_probes(self.points, pid, at_return=True))
        for method, daemon in self.daemons.items():
            for mode in (TracingMode.EXACT, TracingMode.SAMPLED):
                self._add(way_of(mode, method), self._traced(daemon, mode))
        self._add(_MEMLEAK, memleak(pid, self.libc))
        self._add(_MEMLEAK_SAMPLED, memleak(pid, self.libc, every=_MEMLEAK_EVERY))
        self._add(_BPFTRACE, bpftrace(pid, self.libc))
        for way, launcher in _STARTED.items():
            self._add_started(way, launcher)
        self._add_started(_PRELOADED, launchers.inside)
        self._add_started(_INSIDE, launchers.inside, next(iter(self.daemons.values())))

    @contextlib.contextmanager
    def _traced(self, daemon: RunningDaemon, mode: TracingMode):
        with daemon.attached(self.target.pid, mode):
            if mode is TracingMode.SAMPLED:
                self._settle(daemon)
            yield

    def _settle(self, daemon: RunningDaemon) -> None:
        """Work until the sampling has found its interval."""
        until = daemon.client.stats().ticks + 4
        while daemon.client.stats().ticks < until:
            self.target.ns_per_round(self.span_s, 1)

    def _add(self, way: str, attached: contextlib.AbstractContextManager) -> None:
        if way in self.missing:
            return
        before_ns = self._best_ns()
        try:
            with attached:
                cost_ns = self._median_ns(self.target)
        except NotHere as reason:
            self.missing[way] = str(reason)
            return
        self.cost[way].append(cost_ns)
        self.after[way].append(self._best_ns() / before_ns)

    def _add_started(
        self, way: str, launcher: Callable[[Path], Launcher], daemon: RunningDaemon | None = None
    ) -> None:
        """Started under another tool; with a `daemon`, attached to the sampler inside."""
        if way in self.missing:
            return
        with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
            try:
                target = Target(launcher(Path(directory)).command(self.command))
            except NotHere as reason:
                self.missing[way] = str(reason)
                return
            with contextlib.ExitStack() as stack:
                stack.enter_context(contextlib.closing(target))
                if daemon:
                    stack.enter_context(daemon.attached(target.pid, TracingMode.INSIDE))
                self.cost[way].append(self._median_ns(target))

    def _median_ns(self, target: Target) -> float:
        """What a pair costs the target now."""
        return statistics.median(target.ns_per_round(self.span_s)) / self.threads

    def _best_ns(self) -> float:
        """The fastest sample, for ways that cost a few nanoseconds: other load on the machine shows least
        there.
        """
        return min(self.target.ns_per_round(self.span_s / 2, 12))


def way_of(mode: TracingMode, method: AttachMethod) -> str:
    """The name of a way in figures."""
    return f"bpfleakd, {mode}, {method}"


def _report(benchmark: Benchmark, turns: _Turns) -> None:
    cost = turns.cost
    for way, samples in cost.items():
        benchmark.add(turns.prefix + way, "ns", samples)
    for mode in (TracingMode.EXACT, TracingMode.SAMPLED):
        ways = [way_of(mode, method) for method in AttachMethod]
        of_memleak = _EXACT_OF_MEMLEAK if mode is TracingMode.EXACT else _SAMPLED_OF_MEMLEAK
        for way in ways:
            _ratio(benchmark, turns, way, _MEMLEAK, of_memleak if turns.threads == 1 else None)
        for way in ways:
            # Only with a session do unrecorded blocks skip the return of malloc.
            is_demanded = way == way_of(TracingMode.SAMPLED, AttachMethod.SESSION) and turns.threads == 1
            _ratio(benchmark, turns, way, _FLOOR, _SAMPLED_OF_FLOOR if is_demanded else None)
    for way, limit_ns in _INSIDE_MORE_NS.items():
        pairs = zip(cost[way], cost[_NOTHING], strict=False)
        figure = benchmark.add(f"{turns.prefix}{way}, more than {_NOTHING}", "ns", [w - n for w, n in pairs])
        benchmark.demand(figure.name, limit_ns, figure, "ns")
    for method in AttachMethod:
        way = turns.prefix + way_of(TracingMode.EXACT, method)
        after = turns.after[way_of(TracingMode.EXACT, method)]
        figure = benchmark.add(f"{way}: after the detach, of before", "", after)
        benchmark.demand(figure.name, _SPEED_AFTER, figure, "")
    if turns.threads == 1:
        notes = (f"{way} is not among the figures: {reason}." for way, reason in turns.missing.items())
        benchmark.notes.extend(notes)


def _plot(benchmark: Benchmark) -> None:
    """Only the best attach method: the others differ by little."""
    traced = (way_of(mode, AttachMethod.SESSION) for mode in (TracingMode.EXACT, TracingMode.SAMPLED))
    ways = (_NOTHING, _FLOOR, *traced, _MEMLEAK, _MEMLEAK_SAMPLED, _BPFTRACE, *_STARTED, _PRELOADED, _INSIDE)
    series = (Series("1 thread", ways), Series("2 threads", tuple(f"2 threads: {way}" for way in ways)))
    panel = Panel("", "ns of processor time for a pair, logarithmic", "ns", ways, series, log_values=True)
    title = f"A malloc+free pair, {_FRAMES} frames deep"
    benchmark.plots.append(Plot("ways", title, (panel,)))


def _ratio(benchmark: Benchmark, turns: _Turns, way: str, of: str, limit: float | None) -> None:
    """Add the ratio of two ways, turn by turn, and its limit."""
    name = f"{turns.prefix}{way}, of {of}"
    figure: Figure | None = None
    if turns.cost[of]:
        pairs = zip(turns.cost[way], turns.cost[of], strict=True)
        figure = benchmark.add(name, "", [one / other for one, other in pairs])
    if limit is not None:
        benchmark.demand(name, limit, figure, "", f"{of} does not run on this machine")


def _account(benchmark: Benchmark, turns: _Turns) -> None:
    """State where the time goes, by the kernel's own count of the programs' run time."""
    daemon = turns.daemons[AttachMethod.MULTI]
    with run_time_counted(), contextlib.closing(Target([build_workload("many_sites"), 1])) as blocks_only:
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
    """The additional cost if the same daemon traces further processes with the same C library."""
    daemon = turns.daemons[method]
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon.attached(turns.target.pid))
        alone_ns = turns.target.ns_per_round(turns.span_s)
        for _ in range(others):
            other = Target(turns.command, turns.libc)
            stack.callback(other.kill)
            stack.enter_context(daemon.attached(other.pid))
        crowded_ns = turns.target.ns_per_round(turns.span_s)
    name = f"{way_of(TracingMode.EXACT, method)}: each further process that is traced"
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
