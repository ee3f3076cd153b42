"""Node.js' inspector: opened for one sample of the heap, and closed again; or not opened at all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfleakd.process.listeners import TcpSockets

from .daemons import ControlFailed, Daemon
from .test_node import HEAPS, PROGRAM, begins_at

PORT = 9229
# A program of one line, with its own way to take SIGUSR1.
HANDLES = "process.on('SIGUSR1', () => process.exit(3)); console.log('ready'); setInterval(() => {}, 1000)"
FORGETS = "process.on('SIGUSR1', f); process.off('SIGUSR1', f); function f() {}; console.log('ready');"
FORGETS += "setInterval(() => {}, 1000)"


def sample(tracer: Daemon, pid: int, *options: str) -> dict[str, Any]:
    return json.loads(tracer.control("types", pid, "--inspector", "--for", "1s", "--json", *options))


def ordered(report: dict[str, Any]) -> dict[str, Any]:
    """The function that fills the map; one that makes garbage all the time may have more at the moment."""
    return next(one for one in report["functions"] if one["function"] == "order")


def listening(pid: int) -> set[int]:
    return {one.port for one in TcpSockets(pid).listeners() if one.is_own}


@pytest.mark.parametrize("node", HEAPS)
def test_whoever_fills_the_heap(tracer: Daemon, service: Callable[..., subprocess.Popen], node: str) -> None:
    """Said first, then sampled: function, file, line, bytes. The port is open meanwhile and closed after."""
    pid = service(node, f"--inspect-port={PORT + 1}", PROGRAM, "map").pid
    tracer.attach(pid)

    with pytest.raises(
        ControlFailed, match=rf"opened at 127\.0\.0\.1:{PORT + 1} and closed again: meanwhile"
    ):
        sample(tracer, pid)
    assert listening(pid) == set()

    report = sample(tracer, pid, "--yes")

    assert ordered(report)["location"] == begins_at("function order")
    assert ordered(report)["live_bytes"] > 50_000
    assert (report["address"], report["was_open"], report["is_left_open"]) == (
        f"127.0.0.1:{PORT + 1}",
        False,
        False,
    )
    assert listening(pid) == set()


def test_one_that_is_open_stays_open(tracer: Daemon, service: Callable[..., subprocess.Popen]) -> None:
    """It was started with --inspect: no signal, and its port stays."""
    pid = service("node", f"--inspect={PORT + 2}", PROGRAM, "map").pid
    tracer.attach(pid)

    with pytest.raises(ControlFailed, match=rf"is open at 127\.0\.0\.1:{PORT + 2} and stays so"):
        sample(tracer, pid)
    report = sample(tracer, pid, "--yes")

    assert report["was_open"]
    assert ordered(report)
    assert listening(pid) == {PORT + 2}


@pytest.mark.parametrize(
    ("options", "program", "words"),
    [
        ([], HANDLES, "it has its own handler for SIGUSR1"),
        ([], FORGETS, "it does not catch SIGUSR1, which would end it"),
        (["--inspect-port=0.0.0.0:9245"], HANDLES, "for other machines, too"),
    ],
)
def test_one_that_must_not_be_asked(
    tracer: Daemon, service: Callable[..., subprocess.Popen], options: list[str], program: str, words: str
) -> None:
    """The signal would run a handler of the program, or end it; or the port would be everybody's."""
    process = service("node", *options, "-e", program)
    tracer.attach(process.pid)

    with pytest.raises(ControlFailed, match=words):
        sample(tracer, process.pid, "--yes")

    os.kill(process.pid, 0)
    assert process.poll() is None


def test_a_port_of_somebody_else(tracer: Daemon, service: Callable[..., subprocess.Popen]) -> None:
    """Nothing is sent there, and the process gets no signal."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        pid = service("node", f"--inspect-port={port}", PROGRAM, "map").pid
        tracer.attach(pid)

        with pytest.raises(ControlFailed, match=f"another process has port {port}"):
            sample(tracer, pid, "--yes")

        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.fixture
def contained() -> Iterator[int]:
    """A service with its own network, where its localhost is, and its own pid 1."""
    script = f"ip link set lo up; exec node {PROGRAM} map"
    unshare = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
    with subprocess.Popen(unshare, stdout=subprocess.PIPE) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            assert process.stdout.readline() == b"ready\n"
            yield int(children.read_text())
        finally:
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)


def test_one_in_a_container(tracer: Daemon, contained: int) -> None:
    """Its port is in its own network namespace; the same port in the host's belongs to no one."""
    tracer.attach(contained)

    assert ordered(sample(tracer, contained, "--yes"))["live_bytes"] > 0

    assert listening(contained) == set()
    # A second time nothing is in the way.
    assert ordered(sample(tracer, contained, "--yes"))
