"""The managed heap of .NET services without any flag: what is a leak, and which method causes it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .daemons import ControlFailed, Daemon
from .dotnet import dotnet_command
from .waiting import PATIENCE, wait_until


@pytest.fixture
def heaps(service: Callable[..., subprocess.Popen]) -> Callable[[str], int]:
    """A factory of running services of Heaps.cs, by their behaviour; returns their pids."""
    return lambda what: service(*dotnet_command("Heaps", "libsessions.so"), what).pid


def leaks(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [site for site in report["sites"] if site["verdict"] == "leak"]


@pytest.mark.long
def test_a_dictionary_beside_ten_times_as_much_garbage(
    daemon: Callable[..., Daemon], heaps: Callable[[str], int]
) -> None:
    """The verdict names the method that fills it, and the type: not the one that makes the garbage."""
    tracer = daemon(history={"leak_after_s": 10})
    pid = heaps("dictionary")
    tracer.attach(pid)

    def named() -> dict[str, Any] | None:
        """The report once a site leaks; on a busy machine the heap may be known to leak before its keeper."""
        report = tracer.top(pid)
        functions = {site["function"] for site in leaks(report)}
        assert functions <= {"Shop.Sessions.Remember"}
        return report if functions and report["process_verdict"]["verdict"] == "leak" else None

    report = wait_until(named, 180 * PATIENCE)
    assert report["managed"]["verdict"] == "leak"
    assert report["managed"]["full_collections"] > 0
    found = leaks(report)
    assert {site["kind"] for site in found} == {"managed"}
    (orders,) = [site for site in found if site["type"] == "Shop.Order"]
    assert [frame["function"] for frame in orders["stack"]][:2] == [
        "Shop.Sessions.Remember",
        "Shop.Program.Main",
    ]
    assert "Shop.Order" in {one["type"] for one in report["types"][:3]}
    # Garbage may still be alive at the next collection.
    strings = sum(one["live_bytes"] for one in report["types"] if one["type"] == "System.String")
    assert strings < 0.1 * sum(one["live_bytes"] for one in report["types"])
    assert report["process"]["notes"] == []

    # and the whole heap, which `types` counts at a stated price
    with pytest.raises(ControlFailed, match="will be stopped for about"):
        tracer.control("types", "--pid", pid)
    first = json.loads(tracer.control("types", "--pid", pid, "--yes", "--json"))
    again = json.loads(tracer.control("types", "--pid", pid, "--yes", "--json"))
    before, after = (
        next(row for row in counted["types"] if row["type"] == "Shop.Order") for counted in (first, again)
    )
    assert (before["change_bytes"], before["live_bytes"]) == (None, 64 * before["live_count"])
    assert after["change_count"] == after["live_count"] - before["live_count"]


@pytest.mark.long
def test_nothing_is_left_in_the_process(daemon: Callable[..., Daemon], heaps: Callable[[str], int]) -> None:
    """No session of the runtime remains open after the detach, or after the daemon was killed."""
    tracer = daemon()
    pid = heaps("dictionary")

    def attach() -> None:
        tracer.attach(pid)
        wait_until(lambda: tracer.top(pid)["managed"] is not None, 60 * PATIENCE)
        assert open_sessions(pid) > 0

    attach()
    tracer.detach(pid)
    wait_until(lambda: open_sessions(pid) == 0, 30 * PATIENCE)

    attach()
    tracer.kill()
    wait_until(lambda: open_sessions(pid) == 0, 30 * PATIENCE)


def open_sessions(pid: int) -> int:
    """Connected sockets of the process that bear the name of its diagnostics socket."""
    found = Path(f"/proc/{pid}/net/unix").read_text().splitlines()
    inodes = {
        line.split()[6] for line in found if f"dotnet-diagnostic-{pid}-" in line and line.split()[5] == "03"
    }
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    return len(inodes & own)
