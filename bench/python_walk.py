"""What Python frames cost a stack walk, and what their code costs all other programs.

The same process at the same place, with and without its Python frames; and a native program, with the walker
as it is and with a walker compiled without the code for Python frames.

    python -m bench.python_walk --interpreter build/pythons/sid/usr/bin/python3.14

The interpreter may be in another root directory, which has its own C library (`scripts/unpack-pythons`).
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import threading
from collections import defaultdict
from pathlib import Path

from msgspec.structs import replace

from bench.beside import BesidePrograms
from bench.figures import Benchmark
from bench.probes import heap_points
from bench.runner import run_alone
from bench.targets import Target, build_program, own_libc
from bpfleakd.kernel.abi import PYTHON_FRAME
from bpfleakd.model.code.python_walk import PythonWalk
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import read_process
from bpfleakd.runtimes.cpython.runtime import detect_cpython

_MORE_NS = 300.0
_NATIVE_RATIO = 1.02

_FRAMES = 10
# Frames of the native program, including those of the loop, main() and the C library: bench/walk.py.
_NATIVE_CALLS = 5
_CHECKED_ROUNDS = 50_000
_INTERPRETER = "/usr/bin/python3"
_PROGRAM = Path(__file__).parent / "programs" / "python_calls.py"
_WALK = "bench_walk"
# Replaces code of bpf/walk.h: then all frames are native.
_WITHOUT_PYTHON = {
    "next = next_is_python(thread, python, walk, &word);": "next = NATIVE_WORD;",
    "	begin_python(thread, walk);\n": "	walk->python.count = 0;\n",
}


def measure(short: bool, interpreter: str = _INTERPRETER) -> Benchmark:
    """Measure all in turns."""
    benchmark = Benchmark("python_walk", "Python frames in a walk of the stack", short)
    with contextlib.ExitStack() as stack:
        bench = _Bench(stack, Path(interpreter), 0.01 if short else 0.05)
        bench.check_stacks()
        for _ in range(1 if short else 25):
            bench.take_turn()
    cost = bench.cost
    for name, samples in cost.items():
        benchmark.add(name, "ns", samples)
    more = [a - b for a, b in zip(cost[_PYTHON], cost[_NO_PYTHON], strict=True)]
    name = f"{_FRAMES} Python frames, more than the same walk without"
    benchmark.demand(name, _MORE_NS, benchmark.add(name, "ns", more), "ns")
    more = [a - b for a, b in zip(cost[_RECURSION], cost[_NO_RECURSION], strict=True)]
    benchmark.add(f"{_FRAMES} frames of three functions, more than the same walk without", "ns", more)
    ratios = [a / b for a, b in zip(cost[_NATIVE], cost[_NATIVE_WITHOUT], strict=True)]
    name = "pair of a native program, of the one with a walker without Python"
    benchmark.demand(name, _NATIVE_RATIO, benchmark.add(name, "", ratios), "")
    benchmark.notes.append(
        "Each walk starts at the return of malloc; a pair is malloc and free, and of the Python program all"
        f" that it does between. The Python program's stack has {bench.depths[0]} frames with those of"
        f" Python, and {bench.depths[1]} without. The interpreter is CPython {bench.version}."
    )
    return benchmark


_PYTHON = f"pair of a Python program, walked with {_FRAMES} Python frames"
_NO_PYTHON = "pair of a Python program, walked without"
_RECURSION = f"pair of a Python program, walked with {_FRAMES} frames of three functions"
_NO_RECURSION = "pair of the same, walked without"
_NATIVE = "pair of a native program"
_NATIVE_WITHOUT = "pair of a native program, with a walker without Python"


class _Bench:
    """A Python program and a native one, walkers with and without Python, and the samples of the turns."""

    def __init__(self, stack: contextlib.ExitStack, interpreter: Path, span_s: float) -> None:
        self._span_s = span_s
        self.cost: dict[str, list[float]] = defaultdict(list)
        # Depth of the Python program's stack, with its Python frames and without.
        self.depths = (0, 0)
        libc = stack.enter_context(own_libc())
        self._python = _started(stack, interpreter, libc)
        self._recursion = _started(stack, interpreter, libc, "recursion")
        self._native = Target([build_program("depth_tables"), _NATIVE_CALLS], libc)
        stack.callback(self._native.close)
        # By pid.
        self._walks: dict[int, PythonWalk] = {}
        for target in (self._python, self._recursion):
            self.version, self._walks[target.pid] = _walk_of(target.pid)
        self._whole = BesidePrograms(stack, "walk.bpf.c", (_WALK,))
        self._without = BesidePrograms(stack, "walk.bpf.c", (_WALK,), _WITHOUT_PYTHON)
        for pid in self._walks:
            self._whole.follow(pid)
        for programs in (self._whole, self._without):
            programs.follow(self._native.pid)
        targets = (self._python, self._recursion, self._native)
        self._points = {target.pid: heap_points(target.pid) for target in targets}

    def check_stacks(self) -> None:
        """Check that all stacks are whole, and that the Python ones have this many frames of Python."""
        for target in (self._recursion, self._python):
            walk = self._walks[target.pid]
            with_frames, without = self._stack(target, walk), self._stack(target, replace(walk, loops=()))
            counts = [sum(word >= PYTHON_FRAME for word in words) for words in (with_frames, without)]
            if counts != [_FRAMES, 0]:
                raise RuntimeError(f"the stack has {counts[0]} frames of Python, and {counts[1]} without")
            self.depths = len(with_frames), len(without)
        for programs in (self._whole, self._without):
            with programs.attached(_WALK, self._points[self._native.pid], self._native.pid):
                self._native.step(100)
            if programs.last_stack(self._native.pid)[1]:
                raise RuntimeError("the stack of the native program is not whole")

    def take_turn(self) -> None:
        """One sample of everything."""
        for target, name, name_without in (
            (self._python, _PYTHON, _NO_PYTHON),
            (self._recursion, _RECURSION, _NO_RECURSION),
        ):
            walk = self._walks[target.pid]
            self._whole.set_python(target.pid, walk)
            self._take(name, self._whole, target)
            self._whole.set_python(target.pid, replace(walk, loops=()))
            self._take(name_without, self._whole, target)
        for name, programs in ((_NATIVE, self._whole), (_NATIVE_WITHOUT, self._without)):
            self._take(name, programs, self._native)

    def _stack(self, target: Target, walk: PythonWalk) -> tuple[int, ...]:
        """The words of the stack in the program's loop."""
        self._whole.set_python(target.pid, walk)
        with self._whole.attached(_WALK, self._points[target.pid], target.pid):
            target.step(100)
            step = threading.Thread(target=target.step, args=(_CHECKED_ROUNDS,))
            step.start()
            seen = []
            # The program also allocates before and after its loop.
            while step.is_alive():
                seen.append(self._whole.last_words(target.pid))
        depth, end = statistics.mode(one[:2] for one in seen)
        if end:
            raise RuntimeError(f"the stack of the Python program ends after {depth} frames: {end}")
        return next(tuple(words) for *one, words in seen if one == [depth, end])

    def _take(self, name: str, programs: BesidePrograms, target: Target) -> None:
        with programs.attached(_WALK, self._points[target.pid], target.pid):
            self.cost[name].append(statistics.median(target.ns_per_round(self._span_s, repeats=3)))


def _started(stack: contextlib.ExitStack, interpreter: Path, libc: Path, *arguments: str) -> Target:
    """The Python program, with the C library `libc` or with the one of the interpreter's root."""
    root = next(
        (path for path in interpreter.parents if path != Path("/") and (path / "complete").exists()), None
    )
    if root is None:
        target = Target([interpreter, _PROGRAM, *arguments], libc)
    else:
        shutil.copy(_PROGRAM, root)
        target = Target(
            ["chroot", root, f"/{interpreter.relative_to(root)}", f"/{_PROGRAM.name}", *arguments]
        )
    stack.callback(target.close)
    return target


def _walk_of(pid: int) -> tuple[str, PythonWalk]:
    """A process' interpreter: its version, and the walker's description. Raises RuntimeError without one."""
    found = detect_cpython(read_process(pid), read_mappings(pid))
    if found is None or found.frames is None:
        raise RuntimeError(f"no Python frames: {found.notes if found else 'no interpreter'}")
    with contextlib.closing(found):
        return found.version, found.frames.walk


if __name__ == "__main__":
    run_alone(measure, interpreter=_INTERPRETER)
