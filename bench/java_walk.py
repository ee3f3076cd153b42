"""What Java frames cost a traced allocation, beside native ones.

A native loop of malloc and free runs below Java frames, few and many: all interpreted or all compiled. The
difference is what the frames cost. The same of a native program shows what frames cost otherwise.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_program, own_libc
from bench.tracing import RunningDaemon

_MORE_NS = 300.0

_FEW, _MANY = 5, 15
_NATIVE, _INTERPRETED, _COMPILED = "native", "interpreted", "compiled"
_OPTIONS = {
    _INTERPRETED: ("-Xint",),
    # Each method by the quick compiler before it runs, and none inlined.
    _COMPILED: ("-Xcomp", "-XX:TieredStopAtLevel=1", "-XX:-Inline"),
}
# Frames of the native program beside those asked for: bench/walk.py.
_NATIVE_ALWAYS = 5
# An attach on a busy machine does not wait for all unwind tables.
_ATTACHES_MAX = 5
_SMALL = ("-Xmx64m", "-XX:+UseSerialGC")


def measure(short: bool) -> Benchmark:
    """Measure all in turns."""
    benchmark = Benchmark("java_walk", "Java frames in a walk of the stack", short)
    cost: dict[tuple[str, int], list[float]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        daemon = stack.enter_context(RunningDaemon())
        targets = _targets(stack)
        for key, target in targets.items():
            _check_depth(daemon, key, target)
        for _ in range(1 if short else 15):
            for key, target in targets.items():
                with daemon.attached(target.pid):
                    samples = target.ns_per_round(0.01 if short else 0.03, repeats=3)
                cost[key].append(statistics.median(samples))
    of_frames = {
        kind: [many - few for few, many in zip(cost[kind, _FEW], cost[kind, _MANY], strict=True)]
        for kind in (_NATIVE, *_OPTIONS)
    }
    for kind, samples in of_frames.items():
        benchmark.add(f"{_MANY - _FEW} further {kind} frames", "ns", samples)
    for kind in _OPTIONS:
        name = f"{_MANY - _FEW} {kind} frames, more than native ones"
        more = [java - native for java, native in zip(of_frames[kind], of_frames[_NATIVE], strict=True)]
        benchmark.demand(name, _MORE_NS, benchmark.add(name, "ns", more), "ns")
    benchmark.notes.append("Each is of a pair of malloc and free, recorded exactly.")
    return benchmark


def _targets(stack: contextlib.ExitStack) -> dict[tuple[str, int], Target]:
    libc = stack.enter_context(own_libc())
    build_program("libjavawalk.so")
    directory = build_program("JavaWalk.class").parent
    native = build_program("depth_tables")
    targets = {}
    for frames in (_FEW, _MANY):
        targets[_NATIVE, frames] = Target([native, frames - _NATIVE_ALWAYS], libc)
        for kind, options in _OPTIONS.items():
            command = ["java", *_SMALL, *options, "-cp", directory, "JavaWalk", directory, frames]
            targets[kind, frames] = Target(command, libc)
    for target in targets.values():
        stack.callback(target.close)
    return targets


def _check_depth(daemon: RunningDaemon, key: tuple[str, int], target: Target) -> None:
    """Check that the stack is whole, and has as many frames of this kind as stated."""
    kind, frames = key
    # Methods are compiled before they run.
    target.step(1)
    for _ in range(_ATTACHES_MAX):
        with daemon.attached(target.pid):
            target.step(1000)
            daemon.wait_ticks(2)
            sites = daemon.client.report(target.pid).sites
        site = max(sites, key=lambda site: site.allocated_count)
        java = [frame for frame in site.stack if (frame.function or "").startswith("JavaWalk.")]
        if not site.truncated and (kind == _NATIVE or len(java) == frames):
            return
    raise RuntimeError(f"{kind}: the stack has {len(java)} Java frames of {frames}: {site.stack}")


if __name__ == "__main__":
    run_alone(measure)
