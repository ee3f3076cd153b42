"""What it costs a traced process that other processes with the same C library are traced, too.

Empty programs, by each attach method and by shared probes: the kernel's part of the cost, and the time to
attach and detach a process. bpfleakd's way: the first process has its own links, the others share probes.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.figures import Benchmark
from bench.probes import HeapPoints, heap_points
from bench.runner import run_alone
from bench.targets import Target, build_workload, own_libc
from bpfleakd.kernel import bpf
from bpfleakd.kernel.bpf import AttachType, ProgramType
from bpfleakd.kernel.probes.links import Linker, ProbePoint, close_all
from bpfleakd.kernel.probes.shared import SharedKind, SharedProbes, group_of
from bpfleakd.kernel.programs import AttachMethod, programs_of
from bpfleakd.model.code.probe import FunctionRole

_OTHERS = (0, 1, 10, 100)
_BPFFS = Path("/sys/fs/bpf")
# r0 = 0; exit
_EMPTY_PROGRAM = bytes.fromhex("b700000000000000 9500000000000000")
_FILE = (0, 0)  # in place of the C library


def measure(short: bool) -> Benchmark:
    """Measure every method with every number of other processes."""
    benchmark = Benchmark("crowd", "Processes with the same C library that are traced as well", short)
    others = _OTHERS[:3] if short else _OTHERS
    with contextlib.ExitStack() as stack:
        bench = _Bench(stack, short, max(others))
        for _ in range(1 if short else 3):
            for count in others:
                bench.take_turn(count)
        for (way, count, place), samples in bench.pair_ns.items():
            benchmark.add(f"{way}, {count} others: pair of the process attached {place}", "ns", samples)
        for way in bench.ways:
            benchmark.add(f"{way}: attach a process", "ms", bench.attach_ms[way])
            benchmark.add(f"{way}: detach it", "ms", bench.detach_ms[way])
    benchmark.notes.append("Of processes that share, the kernel finds the one attached first last.")
    return benchmark


class _Bench:
    """The processes, the programs of each method, and the samples."""

    def __init__(self, stack: contextlib.ExitStack, short: bool, others_max: int) -> None:
        self._span_s = 0.01 if short else 0.03
        libc = stack.enter_context(own_libc())
        command = [build_workload("churn"), 1]
        self._targets = []
        for _ in range(1 + others_max):
            self._targets.append(Target(command, libc))
            stack.callback(self._targets[-1].kill)
        points = heap_points(self._targets[0].pid)
        self._path = points.path
        self._points = _probe_points(points)
        self._shared = stack.enter_context(_shared_probes())
        self._programs = {method: stack.enter_context(_empty_programs(method)) for method in AttachMethod}
        self.ways = (*(f"own links, {method}" for method in AttachMethod), "shared", "bpfleakd's way")
        self.pair_ns: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        self.attach_ms: dict[str, list[float]] = defaultdict(list)
        self.detach_ms: dict[str, list[float]] = defaultdict(list)

    def take_turn(self, others: int) -> None:
        """One sample of each method, with this many other processes."""
        for method in AttachMethod:
            self._take(f"own links, {method}", others, Linker(method, self._programs[method]), shares=False)
        best = next(iter(AttachMethod))
        sharing = Linker(best, self._programs[best], self._shared)
        self._take("bpfleakd's way", others, sharing, shares=True)
        # For the linker, a process that no longer exists has its own links.
        sharing.adopt(_FILE, 0, ())
        self._take("shared", others, sharing, shares=True)

    def _take(self, way: str, others: int, linker: Linker, *, shares: bool) -> None:
        targets = self._targets[: 1 + others]
        links: list[list[int]] = []
        try:
            began_s = time.perf_counter()
            for target in targets:
                file = _FILE if shares else None
                links.append(linker.link(self._path, self._points, target.pid, 0, file))
            self.attach_ms[way].append(1e3 * (time.perf_counter() - began_s) / len(targets))
            for place, target in {"first": targets[0], "last": targets[-1]}.items():
                self.pair_ns[way, others, place].append(statistics.median(target.ns_per_round(self._span_s)))
        finally:
            began_s = time.perf_counter()
            for target, each in zip(targets, links, strict=False):
                close_all(each)
                linker.forget(target.pid)
            self.detach_ms[way].append(1e3 * (time.perf_counter() - began_s) / len(targets))
        # The kernel closes shared probes at its own pace.
        time.sleep(0.2 if shares else 0)


def _probe_points(points: HeapPoints) -> Sequence[ProbePoint]:
    return (
        ProbePoint(points.malloc, FunctionRole.SIZE_FIRST, ("rdi",)),
        ProbePoint(points.free, FunctionRole.RELEASE, ("rdi",)),
    )


@contextlib.contextmanager
def _empty_programs(method: AttachMethod) -> Iterator[dict[str, int]]:
    """Descriptors of empty programs in place of a method's programs, by name."""
    fds = {
        program.function: bpf.program_load(program.type, _EMPTY_PROGRAM, program.attach_type, "bench_empty")
        for program in programs_of(method)
    }
    try:
        yield fds
    finally:
        close_all(list(fds.values()))


@contextlib.contextmanager
def _shared_probes() -> Iterator[SharedProbes]:
    directory = Path(tempfile.mkdtemp(prefix="bpfleakd-bench-", dir=_BPFFS))
    program = bpf.program_load(ProgramType.KPROBE, _EMPTY_PROGRAM, AttachType.NONE, "bench_empty")
    shared = SharedProbes(dict.fromkeys(SharedKind, program), group_of(directory), directory / "shared")
    try:
        yield shared
    finally:
        shared.drop_unused()
        shared.close()
        os.close(program)
        for path in (directory / "shared", directory):
            with contextlib.suppress(FileNotFoundError):
                path.rmdir()


if __name__ == "__main__":
    run_alone(measure)
