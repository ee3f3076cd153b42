"""What grows with a program: live blocks up to 10^7, call sites up to 10^5, stacks of up to 100 frames.

The cost of a pair, of a tick, and the daemon's memory at each point. Only a deeper stack may make a pair more
expensive than the CPU's caches explain; a tick may grow with the number of changed call sites.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence

from bench.figures import Benchmark, Panel, Plot, Series
from bench.runner import run_alone
from bench.targets import Target, build_program, own_libc
from bench.tracing import RunningDaemon

_LIVE = (10_000, 100_000, 1_000_000, 10_000_000)
_SITES = (100, 1_000, 10_000, 100_000)
_FRAMES = (5, 10, 20, 40, 70, 100)
_SITES_OF_LIVE = 1_000
# The same depth for any number of call sites: the first is always that of left(), and 17 bits suffice for
# all.
_CALLS = 18
# Frames of growth.c's allocate_at_leaf(), of main() and of the C library.
_FRAMES_ALWAYS = 5
_TOP_LIMIT = 20
_TICK_S = 0.5
_PAIRS = 20_000
# Above the default limit, which refuses and counts further ones.
_LIMITS = {
    "live_blocks": 12_000_000,
    "sites": 200_000,
    "stacks": 200_000,
    "process_sites": 150_000,
    "daemon_rss_bytes": 1 << 31,
}

_PAIR, _TICK, _RESIDENT, _TOP = "a pair", "tick", "daemon resident", "`top`"
_CALM_TICK = "tick, few call sites changed"
_UNITS = {_PAIR: "ns", _TICK: "ms", _RESIDENT: "MB", _TOP: "s", _CALM_TICK: "ms"}
_OF_LIVE = _PAIR, _TICK, _RESIDENT, _TOP
_FEW_SITES = 20
_TOP_AT_MOST = 1_000_000, 1.0


def measure(short: bool) -> Benchmark:
    """Measure along the three axes."""
    benchmark = Benchmark("growth", "Live blocks, call sites and depth", short)
    live, sites, frames = (_LIVE[:2], _SITES[:2], _FRAMES[:2]) if short else (_LIVE, _SITES, _FRAMES)
    with contextlib.ExitStack() as stack:
        axes = _Axes(benchmark, stack, repeats=1 if short else 5)
        axes.live_blocks(live)
        axes.call_sites(sites)
        axes.depth(frames)
    benchmark.notes.append(
        f"Exact mode. Live blocks come from {_SITES_OF_LIVE:,} call sites. A tick is one in which all call"
        f" sites have changed, or {_FEW_SITES}; `top` shows {_TOP_LIMIT} of them with the ages of all blocks."
        " The pairs of many call sites take turns, so that none finds its stack in the processor's caches."
    )
    return benchmark


class _Axes:
    """A daemon, and the measurements of it and of a target at each point of an axis."""

    def __init__(self, benchmark: Benchmark, stack: contextlib.ExitStack, repeats: int) -> None:
        self._benchmark = benchmark
        self._repeats = repeats
        self._libc = stack.enter_context(own_libc())

    def live_blocks(self, numbers: Sequence[int]) -> None:
        """One process with more and more live blocks."""
        with self._daemon() as daemon, self._target(_SITES_OF_LIVE, _CALLS) as target:
            daemon.client.attach(target.pid)
            have = 0
            for number in numbers:
                target.step(number - have, timeout_s=600)
                have = number
                self._point(f"{number:,} live blocks", daemon, target, _OF_LIVE)
        self._plot("live blocks", numbers, _OF_LIVE)

    def call_sites(self, numbers: Sequence[int]) -> None:
        """A new process and daemon for each number, because the daemon keeps what it has seen."""
        for number in numbers:
            with self._daemon() as daemon, self._target(number, _CALLS) as target:
                daemon.client.attach(target.pid)
                target.step(number)
                daemon.until(lambda target=target, n=number: self._sites(daemon, target) >= n or None, 60)
                self._point(f"{number:,} call sites", daemon, target, _UNITS)
        self._plot("call sites", numbers, tuple(_UNITS))

    def depth(self, numbers: Sequence[int]) -> None:
        """One daemon: only the cost of a pair may change."""
        with self._daemon() as daemon:
            for number in numbers:
                with self._target(1, number - _FRAMES_ALWAYS) as target:
                    daemon.client.attach(target.pid)
                    target.step(100)
                    self._expect_depth(daemon, target, number)
                    self._point(f"{number} frames", daemon, target, [_PAIR])
        self._plot("frames", numbers, (_PAIR,), is_log=False)

    def _daemon(self) -> RunningDaemon:
        return RunningDaemon(tick_s=_TICK_S, limits=_LIMITS)

    def _target(self, stacks: int, calls: int) -> contextlib.closing[Target]:
        return contextlib.closing(Target([build_program("growth"), stacks, calls], self._libc))

    @staticmethod
    def _sites(daemon: RunningDaemon, target: Target) -> int:
        (traced,) = (p for p in daemon.client.processes() if p.process.pid == target.pid)
        return traced.sites

    @staticmethod
    def _expect_depth(daemon: RunningDaemon, target: Target, frames: int) -> None:
        (site,) = daemon.until(lambda: daemon.client.report(target.pid).sites or None)
        # malloc itself is the first frame.
        depth = sum(not frame.inlined for frame in site.stack) - 1
        if depth != frames or site.truncated:
            raise RuntimeError(f"a stack of {depth} frames instead of {frames}, {site.truncated}")

    def _point(self, where: str, daemon: RunningDaemon, target: Target, what: Sequence[str]) -> None:
        found = {_PAIR: [self._pair_ns(target) for _ in range(self._repeats)]}
        if _TICK in what:
            found[_TICK] = [self._tick_ms(daemon, target, _SITES[-1]) for _ in range(self._repeats)]
        if _CALM_TICK in what:
            found[_CALM_TICK] = [self._tick_ms(daemon, target, _FEW_SITES) for _ in range(self._repeats)]
        if _TOP in what:
            began_s = time.monotonic()
            report = daemon.client.report(target.pid, limit=_TOP_LIMIT)
            found[_TOP] = [time.monotonic() - began_s]
            lost = sum(report.losses.values())
            if lost:
                self._benchmark.notes.append(f"At {where} {lost:,} were missed.")
        if _RESIDENT in what:
            found[_RESIDENT] = [daemon.resident_mb()["VmRSS"]]
        for name in what:
            figure = self._benchmark.add(f"{where}: {name}", _UNITS[name], found[name])
            if (where, name) == (f"{_TOP_AT_MOST[0]:,} live blocks", _TOP):
                self._benchmark.demand(figure.name, _TOP_AT_MOST[1], figure, _UNITS[_TOP])

    def _pair_ns(self, target: Target) -> float:
        target.cpu_ns(-_PAIRS // 10)
        return statistics.median(target.cpu_ns(-_PAIRS) / _PAIRS for _ in range(3))

    @staticmethod
    def _tick_ms(daemon: RunningDaemon, target: Target, sites: int) -> float:
        """The tick that finds this many changed sites, or all if there are fewer."""
        target.step(-sites)
        # The next tick may have begun before the last of them changed.
        return max(stats.last_tick_s for stats in daemon.wait_ticks(2)) * 1e3

    def _plot(self, unit: str, numbers: Sequence[int], what: Sequence[str], *, is_log: bool = True) -> None:
        panels = tuple(
            Panel(
                title=name.strip("`"),
                axis=unit,
                unit=_UNITS[name],
                places=tuple(map(float, numbers)),
                series=(Series("", tuple(f"{number:,} {unit}: {name}" for number in numbers)),),
                log_axis=is_log,
            )
            for name in what
        )
        self._benchmark.plots.append(Plot(unit.replace(" ", "-"), f"Cost by {unit}, exact mode", panels))


if __name__ == "__main__":
    run_alone(measure)
