"""What the daemon itself takes: memory, time for a tick, and how long one waits for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_workload, process_cpu_ns
from bench.tracing import RunningDaemon, free_port
from bpfleakd.model import LeakReport

__all__ = ["measure"]

_RESIDENT_MB = 64
_TICK_MS = 50
_FIRST_FIGURE_S = 2
_SECOND_PROCESS_S = 0.2

_SITES = 1_000
_LIVE = 1_000_000
_TOP_LIMIT = 20


def measure(short: bool) -> Benchmark:
    """Measure the daemon at work, then daemons that have just been started."""
    benchmark = Benchmark("daemon", "The daemon", short)
    _at_work(benchmark, _LIVE // 20 if short else _LIVE, ticks=3 if short else 15)
    _from_cold(benchmark, repeats=1 if short else 5)
    _second_process(benchmark, repeats=1 if short else 7)
    return benchmark


def _at_work(benchmark: Benchmark, live: int, ticks: int) -> None:
    """One process, `live` blocks in a thousand sites: memory and ticks."""
    metrics = {"enabled": True, "port": free_port()}
    with RunningDaemon(metrics=metrics, tick_s=0.5) as daemon, contextlib.closing(_many_sites()) as target:
        daemon.wait_ticks(2)
        _resident(benchmark, daemon, "idle")
        daemon.client.attach(target.pid)
        target.step(live)
        daemon.wait_ticks(2)
        _resident(benchmark, daemon, f"{live:,} live blocks")
        _ticks(benchmark, daemon, ticks)
        top_s = _timed(lambda: daemon.client.report(target.pid, limit=_TOP_LIMIT))
        _resident(benchmark, daemon, f"{live:,} live blocks, after `top`")
        every_site_s = _timed(lambda: daemon.client.report(target.pid))
        _resident(benchmark, daemon, f"{live:,} live blocks, after `top` of all {_SITES:,} sites")
        benchmark.add(f"`top` with a census of {live:,} blocks", "s", [top_s])
        benchmark.add(f"`top` of all {_SITES:,} sites", "s", [every_site_s])


def _many_sites() -> Target:
    return Target([build_workload("many_sites"), _SITES])


def _resident(benchmark: Benchmark, daemon: RunningDaemon, when: str) -> None:
    memory = daemon.resident_mb()
    resident = benchmark.add(f"resident, {when}", "MB", [memory["VmRSS"]])
    benchmark.add(f"resident, {when}: anonymous", "MB", [memory["RssAnon"]])
    benchmark.add(f"resident, {when}: highest so far", "MB", [memory["VmHWM"]])
    benchmark.demand(f"daemon resident, {when}", _RESIDENT_MB, resident, "MB")


def _ticks(benchmark: Benchmark, daemon: RunningDaemon, count: int) -> None:
    before_ns = process_cpu_ns(daemon.pid)
    ticks = daemon.wait_ticks(count)
    cpu_ms = (process_cpu_ns(daemon.pid) - before_ns) / 1e6
    passed = ticks[-1].ticks - ticks[0].ticks + 1
    took = benchmark.add(f"tick, {_SITES:,} sites", "ms", [tick.last_tick_s * 1e3 for tick in ticks])
    benchmark.demand(took.name, _TICK_MS, took, "ms")
    whole = benchmark.add(
        f"processor time of a tick, {_SITES:,} sites, metrics and waiting included", "ms", [cpu_ms / passed]
    )
    benchmark.demand(whole.name, _TICK_MS, whole, "ms")


def _from_cold(benchmark: Benchmark, repeats: int) -> None:
    """From the start of the daemon to the first site that is shown, by commands and over the socket."""
    by_commands = [_first_figure_s(_by_commands) for _ in range(repeats)]
    by_socket = [_first_figure_s(_by_socket) for _ in range(repeats)]
    commands = benchmark.add("start of the daemon, attach, first figure in `top`: commands", "s", by_commands)
    benchmark.add("start of the daemon, attach, first figure in `top`: over the socket", "s", by_socket)
    benchmark.demand(commands.name, _FIRST_FIGURE_S, commands, "s")


def _first_figure_s(ask: Callable[[RunningDaemon, Target], None]) -> float:
    with contextlib.closing(_many_sites()) as target:
        started_s = time.monotonic()
        with RunningDaemon(wait=False) as daemon:
            ask(daemon, target)
            return time.monotonic() - started_s


def _by_commands(daemon: RunningDaemon, target: Target) -> None:
    daemon.until(lambda: daemon.control("attach", target.pid))
    target.step(_SITES)
    daemon.until(lambda: '"site"' in daemon.control("top", "--pid", target.pid, "--once", "--json") or None)


def _by_socket(daemon: RunningDaemon, target: Target) -> None:
    daemon.until(lambda: daemon.client.attach(target.pid))
    target.step(_SITES)
    daemon.until(lambda: _shows_something(daemon.client.report(target.pid, limit=_TOP_LIMIT)))


def _shows_something(report: LeakReport) -> LeakReport | None:
    return report if report.sites else None


def _second_process(benchmark: Benchmark, repeats: int) -> None:
    """Attaching to further processes of a program that is known."""
    with RunningDaemon() as daemon, contextlib.ExitStack() as targets:
        first, *further = [targets.enter_context(contextlib.closing(_many_sites())) for _ in range(1 + 2 * repeats)]
        first_s = _attach_s(daemon.client.attach, first)
        by_socket = [_attach_s(daemon.client.attach, target) for target in further[:repeats]]
        by_command = [_attach_s(partial(daemon.control, "attach"), target) for target in further[repeats:]]
    benchmark.add("attach, first process", "s", [first_s])
    socket = benchmark.add("attach, second process of the same program: over the socket", "s", by_socket)
    benchmark.add("attach, second process of the same program: command", "s", by_command)
    benchmark.demand(socket.name, _SECOND_PROCESS_S, socket, "s")


def _attach_s(attach: Callable[[int], object], target: Target) -> float:
    return _timed(lambda: attach(target.pid))


def _timed(action: Callable[[], object]) -> float:
    started_s = time.monotonic()
    action()
    return time.monotonic() - started_s


if __name__ == "__main__":
    run_alone(measure)
