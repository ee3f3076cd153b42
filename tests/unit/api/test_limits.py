"""How much of the daemon clients can hold: connections, time, memory. Each limit on a real socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.api import client
from bpfleakd.api.admission import PEER_CONNECTIONS_MAX, Admission, has_room, peer_key
from bpfleakd.api.client import DaemonClient
from bpfleakd.api.connection import Deadlines
from bpfleakd.api.local_users import LocalUsers

from ..samples import a_report, a_site, some_stats
from .serving import FakeService, running

SHORT = Deadlines(headers_s=0.3, idle_s=0.9)
Connect = Callable[[], socket.socket]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bpfleakd.sock"


@pytest.fixture(params=["unix", "tcp"])
def connect(request: pytest.FixtureRequest, path: Path) -> Iterator[Connect]:
    """Connects to a server with short deadlines, over either of its sockets."""
    with (
        running(FakeService(stats=some_stats()), path, tcp=True, deadlines=SHORT) as server,
        contextlib.ExitStack() as opened,
    ):

        def one() -> socket.socket:
            kind = socket.AF_UNIX if request.param == "unix" else socket.AF_INET
            connection = opened.enter_context(socket.socket(kind))
            connection.settimeout(5)
            connection.connect(str(path) if request.param == "unix" else ("127.0.0.1", server.tcp_port))
            return connection

        yield one


def ends_after_s(connection: socket.socket) -> float:
    """How long the other end keeps a connection open; its output is discarded."""
    began_s = time.monotonic()
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return time.monotonic() - began_s


def send_until_closed(connection: socket.socket, data: bytes) -> None:
    """Send again and again; fails if the other end never closes."""
    deadline_s = time.monotonic() + 30
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            assert time.monotonic() < deadline_s, "the connection is still open"
            connection.sendall(data)
            time.sleep(0.02)


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-slow: "])
def test_headers_have_a_deadline(connect, sent):
    """A request that is not finished is not waited for."""
    connection = connect()
    connection.sendall(sent)
    assert ends_after_s(connection) >= SHORT.headers_s * 0.9


def test_dribbling_does_not_move_the_deadline(connect):
    """A byte now and then, as slow loris sends them: the end comes all the same."""
    connection = connect()
    began_s = time.monotonic()
    send_until_closed(connection, b"G")
    assert time.monotonic() - began_s >= SHORT.headers_s * 0.9


def test_a_connection_may_rest_between_requests_but_not_for_ever(connect):
    """Longer than headers may take, until the idle deadline."""
    connection = connect()
    for _ in range(2):
        connection.sendall(b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with contextlib.closing(http.client.HTTPResponse(connection)) as answer:
            answer.begin()
            assert (answer.status, len(answer.read()) > 0) == (200, True)
        time.sleep(SHORT.headers_s + 0.2)
    assert ends_after_s(connection) > 0


def test_a_body_without_end_is_not_waited_for(connect):
    """The request is refused, and the connection closed."""
    connection = connect()
    connection.sendall(b"POST /v1/status HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999999\r\n\r\n")
    send_until_closed(connection, b"x" * 1000)


def test_headers_have_a_size(connect):
    """More than 16 KiB are refused, and the connection is closed."""
    connection = connect()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\ncookie: " + b"x" * 40_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 4")
    ends_after_s(connection)


def test_one_user_gets_so_many_connections(path):
    """One connection more gets an error and is closed; when another closes there is room again."""
    with running(FakeService(stats=some_stats()), path, tcp=True) as server, contextlib.ExitStack() as opened:
        held = [
            opened.enter_context(socket.create_connection(("127.0.0.1", server.tcp_port)))
            for _ in range(PEER_CONNECTIONS_MAX)
        ]
        refused = opened.enter_context(socket.create_connection(("127.0.0.1", server.tcp_port), timeout=5))
        answer = opened.enter_context(contextlib.closing(http.client.HTTPResponse(refused)))
        answer.begin()
        assert (answer.status, answer.getheader("retry-after")) == (503, "5")
        assert json.loads(answer.read())["error"]["code"] == "daemon-unreachable"
        # The other listener counts for itself.
        assert DaemonClient(path).stats() == some_stats()
        held[0].close()
        deadline_s = time.monotonic() + 5
        while True:
            again = http.client.HTTPConnection("127.0.0.1", server.tcp_port, timeout=5)
            with contextlib.closing(again):
                again.request("GET", "/v1/status")
                if again.getresponse().status == 200:
                    break
            assert time.monotonic() < deadline_s


@contextlib.contextmanager
def at_the_limit(path: Path) -> Iterator[None]:
    """A server with as many connections as one user may have."""
    with running(FakeService(stats=some_stats()), path), contextlib.ExitStack() as opened:
        for _ in range(PEER_CONNECTIONS_MAX):
            opened.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        yield


def test_a_refused_client_gets_the_reason(path):
    """bpfleakctl reports too many connections, and not a missing daemon."""
    with at_the_limit(path), pytest.raises(errors.DaemonUnreachable, match="reached its connection limit"):
        DaemonClient(path).stats()


def test_a_refused_client_gets_the_reason_though_the_connection_is_closed(path, monkeypatch):
    """The daemon may close it before the client sends anything."""
    connect = client._UnixConnection.connect

    def until_closed(connection):
        connect(connection)
        poll = select.poll()
        poll.register(connection.sock, select.POLLHUP)
        assert poll.poll(60_000)

    monkeypatch.setattr(client._UnixConnection, "connect", until_closed)
    with at_the_limit(path), pytest.raises(errors.DaemonUnreachable, match="reached its connection limit"):
        DaemonClient(path).stats()


def test_an_answer_that_nobody_reads_is_dropped(path):
    """And while it waits no more is computed: each would wait in memory too."""
    site = replace(a_site(), reason="x" * (20 << 20))
    service = FakeService(report=replace(a_report(), sites=(site,)), stats=some_stats())
    with (
        running(service, path, tcp=True, deadlines=Deadlines(5.0, 3.0)) as server,
        socket.create_connection(("127.0.0.1", server.tcp_port)) as connection,
    ):
        connection.sendall(b"GET /v1/processes/1/sites HTTP/1.1\r\nhost: localhost\r\n\r\n")
        deadline_s = time.monotonic() + 60
        seen = []
        while 503 not in seen or seen[-1] != 200:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.tcp_port)) as other:
                other.request("GET", "/v1/status")
                seen.append(other.getresponse().status)
            assert time.monotonic() < deadline_s, seen
            time.sleep(0.05)


def test_a_large_answer_that_is_being_read_keeps_nobody_waiting_long(path):
    """During a large answer (`top --json`), the same client gets answers on other connections a moment later.
    """
    site = replace(a_site(), reason="x" * (20 << 20))
    service = FakeService(report=replace(a_report(), sites=(site,)), stats=some_stats())
    with (
        running(service, path, tcp=True) as server,
        socket.create_connection(("127.0.0.1", server.tcp_port)) as connection,
        contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.tcp_port, timeout=5)) as other,
    ):
        connection.sendall(b"GET /v1/processes/1/sites HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(1)
        other.request("GET", "/v1/status")
        # Reading takes a moment.
        time.sleep(0.3)
        received = 1
        while received < 20 << 20:
            received += len(connection.recv(1 << 20))
        assert other.getresponse().status == 200


def test_limits_are_for_each_and_for_all():
    """A peer over its own limit leaves room to others; all together have one too."""
    admission = Admission(total_max=5, peer_max=2)
    one, two, three = ("user", 1), ("user", 2), ("address", "192.0.2.1")
    assert [admission.admit(one) for _ in range(3)] == [True, True, False]
    assert [admission.admit(two) for _ in range(3)] == [True, True, False]
    assert [admission.admit(three) for _ in range(2)] == [True, False]
    admission.release(one)
    assert [admission.admit(one), admission.admit(three)] == [True, False]
    assert admission.refused_count == 4


def test_an_unread_answer_delays_no_other_client():
    """That client is refused further answers; others, who have read everything, get theirs."""
    one, two, three = ("user", 1), ("user", 2), ("user", 3)
    unsent = [(one, 2 << 20), (one, 7 << 20), (two, 1)]
    assert [has_room(peer, unsent) for peer in (one, two, three, None)] == [False, False, True, True]
    assert has_room(two, [(two, 1), (one, 7 << 20)])
    assert not has_room(two, [(two, 2 << 20), (two, 1)])


@pytest.mark.parametrize("close", [True, False])
def test_a_closed_connection_has_no_owner(close):
    """The kernel reports root as its owner, so clients that open and close connections would use up root's
    share.
    """
    users = LocalUsers()
    with (
        contextlib.closing(users),
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as near,
    ):
        near.shutdown(socket.SHUT_WR)
        if close:
            near.close()
        far, peer = listener.accept()
        expected = pytest.raises(ConnectionError) if close else contextlib.nullcontext()
        with far, expected:
            assert peer_key(far, peer, users) == ("user", os.geteuid())


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.7"), (socket.AF_INET6, "::1")])
def test_local_users_are_distinguished(family, address):
    """By the socket at the other end, whatever loopback address it has."""
    users = LocalUsers()
    with contextlib.closing(users), socket.socket(family) as listener:
        listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2], source_address=(address, 0)) as near:
            far, peer = listener.accept()
            with far:
                assert peer_key(far, peer, users) == ("user", os.geteuid())
                near.close()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_other_machines_are_distinguished_by_network(address, network):
    """An IPv6 host has 2**64 addresses to choose from."""

    class Far:
        family = socket.AF_INET6

        def getpeername(self) -> tuple[str, int]:
            return address, 1

        def getsockname(self) -> tuple[str, int]:
            return "2001:db8::1", 2

    users = LocalUsers()
    with contextlib.closing(users):
        assert peer_key(Far(), (address, 1), users) == ("address", network)
