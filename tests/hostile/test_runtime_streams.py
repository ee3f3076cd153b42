"""Streams of a process that says it is .NET: helpers read them, and only as fast as they are paced."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..kernel.daemons import Daemon
from ..kernel.waiting import wait_until
from ..unit.runtimes.dotnet.streams import RUNTIME, StreamWriter, WrittenEvent, method
from .bystander import Bystander
from .floods import at_length, attackers, expect_left_alone, notes_of, work_on

_COLLECTION = WrittenEvent(RUNTIME, 4, struct.pack("<10QIIIH", *range(10), 0, 0, 0, 8), 1, time_ns=7)
_EVENTS = [_COLLECTION, method("Shop.Program", "Main", 0x1000, 64)] * 500


@pytest.fixture
def endless(public_directory: Path, liar: Path) -> list[Path]:
    """The command's own file, the beginning of a stream, and what may follow it again and again."""
    writer = StreamWriter().events(_EVENTS)
    begins = len(writer.data)
    # Blocks are aligned in the stream: a repetition is as long as that needs.
    while len(writer.data) == begins or (len(writer.data) - begins) % 4:
        writer.events(_EVENTS)
    beginning, repeated = public_directory / "beginning", public_directory / "repeated"
    beginning.write_bytes(writer.data[:begins])
    repeated.write_bytes(writer.data[begins:])
    return [liar, beginning, repeated]


@pytest.fixture
def liar(public_directory: Path) -> Iterator[Path]:
    """The program; sockets that it leaves behind are removed."""
    script = public_directory / "lying_runtime.py"
    script.write_text(Path(__file__).with_name("lying_runtime.py").read_text())
    yield script
    for path in Path("/tmp").glob("dotnet-diagnostic-*-socket"):
        if path.owner() == "nobody":
            path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "manner", ["--silent", *(pytest.param(manner, marks=at_length) for manner in ("--slow", "--long"))]
)
def test_sockets_that_do_not_answer(manner: str, liar: Path, tracer: Daemon, bystander: Bystander) -> None:
    """Threads wait for them, a few at a time, for some seconds each; `ps` states what is missing."""
    with expect_left_alone(bystander), attackers("/usr/bin/python3", liar, manner, count=6) as pids:
        for pid in pids:
            tracer.attach(pid)
        for pid in pids[:2]:
            wait_until(lambda pid=pid: "collections are unknown" in notes_of(tracer, pid), 60)
        work_on(bystander)


def test_streams_that_never_end(endless: list[Path], tracer: Daemon, bystander: Bystander) -> None:
    """Methods, collections and samples without end: the bystander notices nothing, and memory comes back."""
    with expect_left_alone(bystander), attackers("/usr/bin/python3", *endless) as (pid,):
        tracer.attach(pid)
        wait_until(lambda: (tracer.top(pid)["managed"] or {}).get("collections"), 60)
        assert tracer.top(pid)["managed"]["runtime"] == ".NET"
        work_on(bystander)
