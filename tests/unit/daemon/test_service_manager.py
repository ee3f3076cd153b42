"""Messages to the service manager, read at the other end of its socket."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfleakd.daemon.service_manager import ServiceManager, status_line
from bpfleakd.model.process import ProcessState

from ..samples import a_process, a_snapshot, a_traced_process

NOW_NS = 5_000_000_000


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(5)
        yield bound


@pytest.fixture
def manager(listener: socket.socket) -> ServiceManager:
    return ServiceManager(listener.getsockname(), clock_ns=lambda: NOW_NS)


def received(listener: socket.socket) -> list[str]:
    return listener.recv(4096).decode().splitlines()


def test_without_a_manager_nothing_is_sent():
    """As on a terminal; no method fails."""
    manager = ServiceManager.from_environment({})
    manager.starting("loading")
    manager.ready("0 traced")
    manager.tick_ended("0 traced")
    manager.stopping("detaching")


def test_the_address_is_taken_out_of_the_environment(listener: socket.socket):
    """A child that inherited it could say that the daemon is ready."""
    environ = {"NOTIFY_SOCKET": listener.getsockname(), "PATH": "/usr/bin"}
    ServiceManager.from_environment(environ).stopping("detaching")
    assert environ == {"PATH": "/usr/bin"}
    assert received(listener) == ["STOPPING=1", "STATUS=detaching"]


def test_an_address_may_be_abstract():
    """systemd writes its leading zero byte as @."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("")  # the kernel chooses an abstract name
        bound.settimeout(5)
        name = bound.getsockname().decode()
        ServiceManager("@" + name[1:]).starting("loading")
        assert received(bound) == ["STATUS=loading"]


def test_a_reload_begins_with_its_time_and_ends_ready(manager: ServiceManager, listener: socket.socket):
    """The time is CLOCK_MONOTONIC in microseconds, as Type=notify-reload requires."""
    manager.reloading()
    assert received(listener) == ["RELOADING=1", f"MONOTONIC_USEC={NOW_NS // 1_000}"]
    manager.ready("2 traced")
    assert received(listener) == ["READY=1", "STATUS=2 traced"]


def test_the_status_goes_along_only_when_it_changes(manager: ServiceManager, listener: socket.socket):
    """The watchdog is fed each time."""
    manager.ready("0 traced")
    assert received(listener) == ["READY=1", "STATUS=0 traced"]
    manager.tick_ended("0 traced")
    assert received(listener) == ["WATCHDOG=1"]
    manager.tick_ended("1 traced")
    assert received(listener) == ["WATCHDOG=1", "STATUS=1 traced"]


def test_a_manager_that_went_away_does_no_harm(manager: ServiceManager, listener: socket.socket):
    """Its socket is closed, then even its file is gone."""
    listener.close()
    manager.tick_ended("1 traced")
    ServiceManager("/nowhere/notify").tick_ended("1 traced")


def test_the_status_line_counts_who_is_traced_who_grows_and_what_was_lost():
    """Processes that ended are not in it."""
    snapshot = a_snapshot(
        a_traced_process(1, process=a_process(1, growth_bytes_per_s=0.5), losses={"live_full": 1_000}),
        a_traced_process(2, process=a_process(2, growth_bytes_per_s=0.0), losses={"stack_full": 3, "x": 4}),
        a_traced_process(3, process=a_process(3, growth_bytes_per_s=-9.0), losses={}),
        a_traced_process(4, process=a_process(4, state=ProcessState.EXITED), losses={"live_full": 9}),
    )
    assert status_line(snapshot) == "3 traced, 1 growing, 1,007 lost"


def test_how_long_the_watchdog_waits():
    """Without a watchdog, forever; children do not inherit it."""
    environ = {"WATCHDOG_USEC": "2500000"}
    assert ServiceManager.from_environment(environ).watchdog_s == 2.5
    assert environ == {}
    assert ServiceManager.from_environment({"WATCHDOG_USEC": "soon"}).watchdog_s == math.inf
    assert ServiceManager.from_environment({}).watchdog_s == math.inf
