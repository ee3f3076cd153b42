"""What a stack walk costs, compared with the kernel following frame pointers.

The same program at the same place, the return of malloc, with and without the walk: the difference is the
walk. bpf_get_stack sees whole stacks only in code with frame pointers, so they are compared there; in other
code it stops after the caller, and only the walk by tables is measured.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict

from bench.beside import BesidePrograms
from bench.figures import Benchmark
from bench.probes import heap_points
from bench.runner import run_alone
from bench.targets import Target, build_program, own_libc
from bench.tracing import RunningDaemon

_SHARE_OF_GET_STACK = 0.8

# Walked frames, including five of the loop itself, main() and the C library.
_FRAMES = (5, 30)
_FRAMES_ALWAYS = 5

_NOTHING, _WALK, _GET_STACK, _GET_STACKID = (
    "bench_nothing",
    "bench_walk",
    "bench_get_stack",
    "bench_get_stackid",
)
_TITLES = {_WALK: "bpfleakd's walk", _GET_STACK: "bpf_get_stack", _GET_STACKID: "bpf_get_stackid"}
_CODE = {"frame_pointers": "frame pointers", "tables": "no frame pointers"}
_EXACT = "exact"


def measure(short: bool) -> Benchmark:
    """Measure at both depths, in both kinds of code."""
    benchmark = Benchmark("walk", "A walk of the stack", short)
    with contextlib.ExitStack() as stack:
        bench = _Bench(stack, short)
        bench.check_depths()
        for _ in range(1 if short else 15):
            bench.take_turn()
        _report(benchmark, bench)
    benchmark.notes.append(
        "Each walk starts at the return of malloc. bpf_get_stack follows frame pointers, and the C library"
        f" below main() keeps none: of {_FRAMES[1]} frames it returns {bench.kernel_frames} even in code"
        " with frame pointers, and 1 in code without."
    )
    return benchmark


class _Bench:
    """Targets at each depth in each kind of code, the programs, and the samples of the turns."""

    def __init__(self, stack: contextlib.ExitStack, short: bool) -> None:
        self._span_s = 0.01 if short else 0.03
        # How many frames bpf_get_stack returns at the greater depth.
        self.kernel_frames = 0
        # (code, frames, program) -> nanoseconds of a malloc+free pair
        self.cost: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        self._daemon = stack.enter_context(RunningDaemon())
        self._programs = BesidePrograms(stack, "walk.bpf.c", (_NOTHING, *_TITLES))
        libc = stack.enter_context(own_libc())
        self._targets: dict[tuple[str, int], Target] = {}
        for code in _CODE:
            for frames in _FRAMES:
                target = Target([build_program(f"depth_{code}"), frames - _FRAMES_ALWAYS], libc)
                stack.callback(target.kill)
                self._targets[code, frames] = target
                self._programs.follow(target.pid)
        self._points = heap_points(target.pid)

    def check_depths(self) -> None:
        """Check that a walk has the stated number of frames, and that it reached the end."""
        for (code, frames), target in self._targets.items():
            with self._programs.attached(_WALK, self._points, target.pid):
                target.step(100)
            # The function itself is the first frame.
            depth, end = self._programs.last_stack(target.pid)
            if (depth - 1, end) != (frames, 0):
                raise RuntimeError(f"{code}: walked {depth - 1} frames instead of {frames}, end {end}")
        target = self._targets["frame_pointers", _FRAMES[1]]
        with self._programs.attached(_GET_STACK, self._points, target.pid):
            target.step(100)
        self.kernel_frames, _end = self._programs.last_stack(target.pid)

    def take_turn(self) -> None:
        """One sample of everything."""
        for (code, frames), target in self._targets.items():
            for program in (_NOTHING, *_TITLES):
                with self._programs.attached(program, self._points, target.pid):
                    self._take(code, frames, program, target)
            self._daemon.client.attach(target.pid)
            try:
                self._take(code, frames, _EXACT, target)
            finally:
                self._daemon.client.detach(target.pid)

    def walk_ns(self, code: str, frames: int, program: str) -> list[float]:
        """The cost of a program beyond the empty one, turn by turn."""
        pairs = zip(self.cost[code, frames, program], self.cost[code, frames, _NOTHING], strict=True)
        return [cost - nothing for cost, nothing in pairs]

    def frame_ns(self, code: str, program: str) -> list[float]:
        """The cost of one more frame, turn by turn."""
        few, many = _FRAMES
        pairs = zip(self.cost[code, few, program], self.cost[code, many, program], strict=True)
        return [(deep - flat) / (many - few) for flat, deep in pairs]

    def _take(self, code: str, frames: int, program: str, target: Target) -> None:
        samples = target.ns_per_round(self._span_s, repeats=3)
        self.cost[code, frames, program].append(statistics.median(samples))


def _report(benchmark: Benchmark, bench: _Bench) -> None:
    for code, code_title in _CODE.items():
        for program, title in _TITLES.items():
            if code == "tables" and program != _WALK:
                continue
            for frames in _FRAMES:
                name = f"{title}, {frames} frames, {code_title}"
                benchmark.add(name, "ns", bench.walk_ns(code, frames, program))
            name = f"{title}, each further frame, {code_title}"
            benchmark.add(name, "ns", bench.frame_ns(code, program))
        name = f"exact mode, each further frame of a malloc+free pair, {code_title}"
        benchmark.add(name, "ns", bench.frame_ns(code, _EXACT))
    _demand(benchmark, bench)


def _demand(benchmark: Benchmark, bench: _Bench) -> None:
    code = "frame_pointers"
    for frames in _FRAMES:
        ours = bench.walk_ns(code, frames, _WALK)
        for program in (_GET_STACK, _GET_STACKID):
            others = bench.walk_ns(code, frames, program)
            name = f"walk of {frames} frames, of {_TITLES[program]}"
            ratio = benchmark.add(name, "", [a / b for a, b in zip(ours, others, strict=True)])
            if program == _GET_STACK:
                benchmark.demand(name, _SHARE_OF_GET_STACK, ratio, "")
    # The ratio of the medians: a difference of differences is too small to be compared turn by turn.
    ours_ns, others_ns = (statistics.median(bench.frame_ns(code, name)) for name in (_WALK, _GET_STACK))
    name = f"walk, each further frame, of {_TITLES[_GET_STACK]}"
    benchmark.demand(name, _SHARE_OF_GET_STACK, benchmark.add(name, "", [ours_ns / others_ns]), "")


if __name__ == "__main__":
    run_alone(measure)
