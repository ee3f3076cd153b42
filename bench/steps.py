"""What each step of recording a malloc+free pair costs, by the kernel's own count.

    python -m bench.steps [--short] [--keep DIRECTORY]
    python -m bench.steps --compare BEFORE AFTER        two saved results as a table, for bench/README.md

Each step is a separate program (programs/steps.bpf.c) at the return of malloc, made of the daemon's own
inlines; the cost of a step is the difference to the program without it. The kernel counts a run without the
way into the probe, which is the rest of a pair. The steps took turns in one run.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.beside import BesidePrograms
from bench.figures import Benchmark, read_results
from bench.probes import HeapPoints, heap_points, run_time_counted, run_time_of
from bench.runner import run_alone
from bench.targets import Target, build_program, own_libc
from bench.tracing import RunningDaemon
from bpfleakd.kernel import bpf
from bpfleakd.kernel.probes.links import close_all
from bpfleakd.kernel.programs import AttachMethod, programs_of

_FRAMES = 10
# Frames of the loop itself, main() and the C library: bench/walk.py.
_FRAMES_ALWAYS = 5
_NOTHING = "step_nothing"


@dataclass(frozen=True, slots=True)
class _Step:
    """`program` minus `without`, this many times per pair."""

    title: str
    program: str
    without: str
    times: int


_STEPS = (
    _Step("which process, and the count of hits", "step_process", _NOTHING, 3),
    _Step("memory of the thread", "step_thread", "step_process", 2),
    _Step("the call under way, kept", "step_pending", "step_thread", 1),
    _Step(f"walk of {_FRAMES} frames", "step_walk", "step_thread", 1),
    _Step("the time, and whether a daemon lives", "step_time", "step_process", 1),
    _Step("site of the stack, looked up", "step_site", "step_process", 1),
    _Step("block into the live table and out", "step_live", "step_process", 1),
    _Step("counters added, and subtracted at the free", "step_counters", "step_site", 1),
    _Step("was it the block allocated last", "step_temporary", "step_process", 1),
)
_HASH = _Step(f"of the walk: hash of {_FRAMES} frames", "step_hash", "step_thread", 1)
_ALL = "all steps"
_PROGRAMS = "the daemon's programs, a pair"
_PAIR = "the pair, the way into the probes included"


def measure(short: bool) -> Benchmark:
    """Measure all steps in turns."""
    benchmark = Benchmark("steps", "Steps of the record path", short)
    with contextlib.ExitStack() as stack:
        bench = _Bench(stack, short)
        for _ in range(1 if short else 15):
            bench.take_turn()
        for step in (*_STEPS, _HASH):
            benchmark.add(_name(step), "ns", bench.step_ns(step))
        benchmark.add(_ALL, "ns", [sum(each) for each in zip(*map(bench.step_ns, _STEPS), strict=True)])
        benchmark.add(_PROGRAMS, "ns", bench.programs_ns)
        benchmark.add(_PAIR, "ns", bench.pair_ns)
    benchmark.notes.append(
        f"A malloc+free pair below {_FRAMES} frames without frame pointers, exact, one thread; all tables"
        " small enough for the caches. The programs do a little that is no step of its own."
    )
    return benchmark


def _name(step: _Step) -> str:
    return f"{step.title}, {step.times} times" if step.times > 1 else step.title


class _Bench:
    """A target, a daemon, the steps, and the samples of the turns."""

    def __init__(self, stack: contextlib.ExitStack, short: bool) -> None:
        self._span_s = 0.01 if short else 0.03
        self._repeats = 3 if short else 5
        self._run_ns: dict[str, list[float]] = defaultdict(list)
        self.programs_ns: list[float] = []
        self.pair_ns: list[float] = []
        self._daemon = stack.enter_context(RunningDaemon(attach_method=AttachMethod.MULTI.value))
        libc = stack.enter_context(own_libc())
        self._target = Target([build_program("depth_tables"), _FRAMES - _FRAMES_ALWAYS], libc)
        stack.callback(self._target.kill)
        self._names = (_NOTHING, *(step.program for step in (*_STEPS, _HASH)))
        self._steps = BesidePrograms(stack, "steps.bpf.c", self._names)
        self._steps.follow(self._target.pid)
        self._points: HeapPoints = heap_points(self._target.pid)
        self._check()

    def take_turn(self) -> None:
        """One sample of everything."""
        for name in self._names:
            descriptor = self._steps.descriptors[name]
            with run_time_counted(), self._steps.attached(name, self._points, self._target.pid):
                self._run_ns[name].append(self._least(lambda d=descriptor: (run_time_of(d),)))
        with self._daemon.attached(self._target.pid):
            self.pair_ns.append(statistics.median(self._target.ns_per_round(self._span_s)))
            self.programs_ns.append(self._all_programs_ns())

    def step_ns(self, step: _Step) -> list[float]:
        """The cost of a step per pair, turn by turn."""
        pairs = zip(self._run_ns[step.program], self._run_ns[step.without], strict=True)
        return [step.times * (program - without) for program, without in pairs]

    def _all_programs_ns(self) -> float:
        programs = programs_of(AttachMethod.MULTI)
        fds = [bpf.object_get(self._daemon.pinned(program.function)) for program in programs]
        try:
            with run_time_counted():
                entry_and_exit = self._least(lambda: tuple(run_time_of(fd) for fd in fds), runs_a_round=3)
            return entry_and_exit - 3 * self._run_ns[_NOTHING][-1]
        finally:
            close_all(fds)

    def _least(self, read: Callable[[], tuple], runs_a_round: int = 1) -> float:
        """Nanoseconds per round in the programs `read`, the least of several: interrupts only add."""
        found = []
        for _ in range(self._repeats):
            before = read()
            rounds = int(self._span_s * 1e9 / 1500)
            self._target.step(rounds)
            after = read()
            runs = sum(a.runs - b.runs for a, b in zip(after, before, strict=True))
            ns = sum(a.ns - b.ns for a, b in zip(after, before, strict=True))
            found.append(runs_a_round * ns / max(1, runs))
        return min(found)

    def _check(self) -> None:
        """Check that a walk has the stated number of frames."""
        with self._steps.attached("step_walk", self._points, self._target.pid):
            self._target.step(100)
        depth, end = self._steps.last_stack(self._target.pid)
        if (depth - 1, end) != (_FRAMES, 0):
            raise RuntimeError(f"walked {depth - 1} frames instead of {_FRAMES}, end {end}")


def _comparison(before: Benchmark, after: Benchmark) -> str:
    """Two results as a table in Markdown."""
    lines = ["| step | before | share | after | share |", "| --- | ---: | ---: | ---: | ---: |"]
    earlier, later = ({f.name: f.median for f in each.figures} for each in (before, after))
    for name, ns in later.items():
        cells = [
            f"{value:,.0f} ns | {value / of[_ALL]:.0%}"
            for value, of in ((earlier[name], earlier), (ns, later))
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    machines = f"Before: {before.machine}. After: {after.machine}."
    return "\n".join([*lines, "", machines])


def _main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    compared, _others = parser.parse_known_args()
    if compared.compare:
        print(_comparison(*(read_results("steps", directory) for directory in compared.compare)))
    else:
        run_alone(measure)


if __name__ == "__main__":
    _main()
