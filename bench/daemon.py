"""What the daemon itself uses: memory, time per tick, and how long users wait for it."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial

from bench.figures import Benchmark
from bench.runner import run_alone
from bench.targets import Target, build_workload, process_cpu_ns
from bench.tracing import RunningDaemon, free_port

_RESIDENT_MB = 64
_TICK_MS = 50
_FIRST_FIGURE_S = 2
_SECOND_PROCESS_S = 0.2

_SITES = 1_000
_LIVE = 1_000_000
_TOP_LIMIT = 20
_TICK_S = 0.25


def measure(short: bool) -> Benchmark:
    """Measure the daemon at work, then daemons that have just been started."""
    benchmark = Benchmark("daemon", "The daemon", short)
    _at_work(benchmark, _LIVE // 20 if short else _LIVE, ticks=2 if short else 15)
    _first_starts(benchmark, repeats=1 if short else 5)
    _later_starts(benchmark, repeats=1 if short else 5)
    _second_process(benchmark, repeats=1 if short else 7)
    return benchmark


def _at_work(benchmark: Benchmark, live: int, ticks: int) -> None:
    """One process, `live` blocks in a thousand sites: memory and ticks."""
    metrics = {"enabled": True, "port": free_port()}
    with (
        RunningDaemon(metrics=metrics, tick_s=_TICK_S, cache_dir=None) as daemon,
        contextlib.closing(_many_sites()) as target,
    ):
        daemon.wait_ticks(2)
        _resident(benchmark, daemon, "idle")
        daemon.client.attach(target.pid)
        target.step(live)
        daemon.wait_ticks(1)
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
    ticks = daemon.wait_ticks(count)
    took = benchmark.add(f"tick, {_SITES:,} sites", "ms", [tick.last_tick_s * 1e3 for tick in ticks])
    benchmark.demand(took.name, _TICK_MS, took, "ms")
    # Without requests meanwhile: answers take time, too.
    before, before_ns = daemon.client.stats(), process_cpu_ns(daemon.pid)
    time.sleep(count * _TICK_S)
    cpu_ms = (process_cpu_ns(daemon.pid) - before_ns) / 1e6
    passed = daemon.client.stats().ticks - before.ticks
    whole = benchmark.add(
        f"processor time of the daemon a tick, {_SITES:,} sites, metrics included", "ms", [cpu_ms / passed]
    )
    benchmark.demand(whole.name, _TICK_MS, whole, "ms")


def _first_starts(benchmark: Benchmark, repeats: int) -> None:
    """From the start of the daemon until it shows the first site, by commands and over the socket."""
    whole = "start of the daemon, attach, first figure in `top`"
    benchmark.add(f"{whole}: commands", "s", [_first_by_commands_s(None) for _ in range(repeats)])
    phases = [_first_by_socket_s(None) for _ in range(repeats)]
    benchmark.add(f"{whole}: over the socket", "s", [sum(parts) for parts in phases])
    for number, part in enumerate(("until the daemon answers", "attach", "first figure")):
        benchmark.add(f"of this: {part}", "s", [parts[number] for parts in phases])


def _later_starts(benchmark: Benchmark, repeats: int) -> None:
    """The same for a daemon whose predecessor has filled the caches."""
    whole = "later start of the daemon, attach, first figure in `top`"
    with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as cache:
        _first_by_commands_s(cache)
        commands_s = [_first_by_commands_s(cache) for _ in range(repeats)]
        phases = [_first_by_socket_s(cache) for _ in range(repeats)]
    commands = benchmark.add(f"{whole}: commands", "s", commands_s)
    benchmark.add(f"{whole}: over the socket", "s", [sum(parts) for parts in phases])
    benchmark.add("of a later start: until the daemon answers", "s", [parts[0] for parts in phases])
    benchmark.demand(commands.name, _FIRST_FIGURE_S, commands, "s")


def _first_by_commands_s(cache: str | None) -> float:
    with contextlib.closing(_many_sites()) as target:
        started_s = time.monotonic()
        with RunningDaemon(cache_dir=cache) as daemon:
            daemon.control("attach", target.pid)
            target.step(_SITES)
            top = ("top", "--pid", target.pid, "--once", "--json")
            daemon.until(lambda: json.loads(daemon.control(*top))["sites"] or None)
            return time.monotonic() - started_s


def _first_by_socket_s(cache: str | None) -> tuple[float, float, float]:
    """Seconds until the daemon answers, until it has attached, until it shows a site."""
    with contextlib.closing(_many_sites()) as target:
        started_s = time.monotonic()
        with RunningDaemon(cache_dir=cache) as daemon:
            answers_s = time.monotonic()
            daemon.client.attach(target.pid)
            attached_s = time.monotonic()
            target.step(_SITES)
            daemon.until(lambda: daemon.client.report(target.pid, limit=_TOP_LIMIT).sites or None)
            return answers_s - started_s, attached_s - answers_s, time.monotonic() - attached_s


def _second_process(benchmark: Benchmark, repeats: int) -> None:
    """Attaching to further processes of a known program."""
    with RunningDaemon(cache_dir=None) as daemon, contextlib.ExitStack() as targets:
        first, *further = [
            targets.enter_context(contextlib.closing(_many_sites())) for _ in range(1 + 2 * repeats)
        ]
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
