"""Healthy services of managed runtimes, all at once: none is a leak at any time.

Each runtime has one that churns, with many collections, and one that idles, with hardly any. A run is short
unless HEALTHY_S says how long; `make healthy-runtimes` watches them for ten minutes.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .daemons import Daemon
from .dotnet import dotnet_command
from .java import java_program
from .test_node import HEAPS, PROGRAM
from .waiting import PATIENCE, wait_until

HEALTHY_S = float(os.environ.get("HEALTHY_S", "25"))
# A short run has collections and a verdict, too.
LEAK_AFTER_S = 45 if HEALTHY_S > 120 else 10
COLLECTIONS_MIN = 5


def commands() -> dict[str, list[str]]:
    """The services by name."""
    found = {}
    for way in ("healthy", "idle"):
        found[f"Java, {way}"] = [*java_program("JavaLeaks", options=("-Xmx64m",)), way]
        found[f".NET, {way}"] = [*dotnet_command("Heaps", "libsessions.so"), way]
        for node in HEAPS:
            found[f"Node.js {node}, {way}"] = [node, PROGRAM, way]
    return {name: list(map(str, command)) for name, command in found.items()}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[dict[str, int]]:
    """The pids of the services, each of which runs."""
    started = {
        name: subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name, command in commands().items()
    }
    try:
        for process in started.values():
            assert process.stdout.readline() == b"ready\n"
        yield {name: process.pid for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.mark.long
def test_no_healthy_service_leaks(daemon: Callable[..., Daemon], services: dict[str, int]) -> None:
    """Neither the process nor any call site, at any moment."""
    tracer = daemon(history={"leak_after_s": LEAK_AFTER_S})
    for pid in services.values():
        tracer.attach(pid)
    began_s = time.monotonic()
    last: dict[str, dict[str, Any]] = {}

    def is_over() -> bool:
        for name, pid in services.items():
            last[name] = report = tracer.top(pid)
            assert report["process_verdict"]["verdict"] != "leak", (name, report["process_verdict"])
            assert [site for site in report["sites"] if site["verdict"] == "leak"] == [], name
        heaps = [report["managed"] for name, report in last.items() if "healthy" in name]
        are_seen = all(heap and heap["collections"] >= COLLECTIONS_MIN for heap in heaps)
        return are_seen and time.monotonic() - began_s > HEALTHY_S

    wait_until(is_over, (HEALTHY_S + 60) * PATIENCE)

    announced = [*tracer.events("heap.leak"), *tracer.events("site.leak")]
    assert [event for event in announced if event["pid"] in services.values()] == []
    for name, report in last.items():
        heap = report["managed"]
        print(name, report["process_verdict"]["verdict"], heap and heap["reason"])
