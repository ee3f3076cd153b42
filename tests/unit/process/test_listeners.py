"""Where a process listens, and which connections belong to it, with real sockets."""

from __future__ import annotations

import os
import socket

import pytest

from bpfleakd.process.listeners import TcpSockets

from .test_descriptors import child


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_its_own_and_others(family: int, address: str) -> None:
    """A socket is its own by its descriptor; one here is on the same list, and not its own."""
    script = f"""
server = socket.create_server(({address!r}, 0), family={int(family)})
told = server.getsockname()[1]
"""
    with child(script) as (pid, told), socket.create_server((address, 0), family=family) as ours:
        port, own = int(told), ours.getsockname()[1]
        found = {one.port: one for one in TcpSockets(pid).listeners()}
        assert (found[port].is_own, found[port].address, found[port].is_loopback) == (True, address, True)
        assert not found[own].is_own
        assert str(found[port]) == (f"[::1]:{port}" if family == socket.AF_INET6 else f"127.0.0.1:{port}")


def test_who_is_at_the_other_end() -> None:
    """Before it has accepted, a process is not; and never for another."""
    script = "server = socket.create_server(('127.0.0.1', 0))\ntold = server.getsockname()[1]"
    with (
        child(script) as (pid, port),
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
        socket.create_connection(("127.0.0.1", int(port))) as waiting,
    ):
        own, others = TcpSockets(os.getpid()), TcpSockets(pid)
        assert not own.has_accepted(connection)
        accepted, _address = server.accept()
        with accepted:
            assert own.has_accepted(connection)
            assert not others.has_accepted(connection)
            assert not others.has_accepted(waiting)
