"""HTTP as clients other than ours speak it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from pathlib import Path

import pytest

from bpfleakd.api.connection import Connection, Deadlines

from ..samples import a_traced_process, some_stats
from .serving import FakeService, running

STATUS = b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bpfleakd.sock"


def exchanged(path: Path, sent: bytes, method: str = "GET") -> tuple[http.client.HTTPResponse, bytes]:
    """The first answer to these bytes, and its body."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection, method=method)
        answer.begin()
        return answer, answer.read()


def test_requests_sent_ahead_are_answered_in_order(path):
    """The first one takes until all have arrived."""
    all_sent = threading.Event()

    def slow() -> tuple[object, ...]:
        assert all_sent.wait(10)
        return ()

    service = FakeService(processes=lambda: asyncio.to_thread(slow), stats=some_stats())
    with running(service, path), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(STATUS.replace(b"status", b"processes"))
        for _ in range(5):
            connection.sendall(STATUS)
        all_sent.set()
        bodies = []
        for _ in range(6):
            # Unbuffered, it would read into the next answer.
            answer = http.client.HTTPResponse(connection)
            answer.fp = connection.makefile("rb", buffering=0)
            answer.begin()
            bodies.append(answer.read())
    assert bodies[0] == b'{"processes":[]}'
    assert len(set(bodies[1:])) == 1
    assert b"processes_attached_total" in bodies[1]


def test_head_has_the_headers_of_get_and_no_body(path):
    """So a health check costs nothing to send."""
    with running(FakeService(stats=some_stats()), path):
        whole, body = exchanged(path, STATUS)
        head, nothing = exchanged(path, STATUS.replace(b"GET", b"HEAD"), "HEAD")
    assert (head.status, nothing) == (200, b"")
    assert head.getheaders() == whole.getheaders()
    assert int(whole.headers["content-length"]) == len(body)


@pytest.mark.parametrize(
    "body",
    [
        b"content-length: 5\r\n\r\nhello",
        b"content-length: 5\r\nexpect: 100-continue\r\n\r\nhello",
        b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ],
)
def test_a_body_and_an_upgrade_are_ignored(path, body):
    """Clients may send them."""
    with running(FakeService(attach=a_traced_process(23)), path):
        answer, _ = exchanged(path, b"POST /v1/processes/23 HTTP/1.1\r\nhost: localhost\r\n" + body)
    assert answer.status == 201


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /v1/processes/1 HTTP/1.1\r\nhost: l\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n", 411),
        (b"POST /v1/processes/1 HTTP/1.1\r\nhost: l\r\ncontent-length: 16385\r\n\r\nx", 413),
        (b"GET /v1/status HTTP/1.1\r\nhost: l\r\n" + b"a: b\r\n" * 100 + b"\r\n", 431),
        (b"GET /v1/status HTTP/1.1\r\nhost: l\r\n" + b"a: b\r\n" * 100, 431),
        (b"GET /v1/status?" + b"&" * 100 + b" HTTP/1.1\r\nhost: l\r\n\r\n", 400),
    ],
)
def test_what_would_keep_the_loop_busy_is_refused(path, sent, status):
    """Each piece of a body, header and parameter costs some µs, in which nobody else gets an answer."""
    service = FakeService(stats=some_stats())
    with running(service, path):
        answer, body = exchanged(path, sent)
        assert exchanged(path, STATUS)[0].status == 200
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert json.loads(body)["error"]["code"] == "bad-request"
    assert [method for method, *_ in service.calls] == ["stats"]


def test_a_request_may_have_a_hundred_headers_and_parameters(path):
    """A browser sends some 20, and a proxy before it adds a few."""
    headers = b"".join(b"x-%d: y\r\n" % number for number in range(99))
    sent = b"GET /v1/processes?" + b"&" * 99 + b" HTTP/1.1\r\nhost: l\r\n" + headers + b"\r\n"
    with running(FakeService(processes=()), path):
        assert exchanged(path, sent)[0].status == 200
        # Those of requests that were sent ahead count for themselves.
        assert exchanged(path, sent * 3)[0].status == 200


def test_data_is_parsed_a_little_at_a_time():
    """Between two pieces others get their turn."""
    seen: list[int] = []

    class Inner(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            seen.append(len(data))

    async def receive() -> None:
        ours, theirs = socket.socketpair()
        connection = Connection(lambda _: Inner(), lambda: None, Deadlines())
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
        with theirs:
            await asyncio.to_thread(theirs.sendall, bytes(200_000))
            while sum(seen) < 200_000:
                await asyncio.sleep(0)

    asyncio.run(receive())
    assert max(seen) <= 16 << 10


def test_expect_100_gets_a_continue(path):
    """RFC 9110, 10.1.1."""
    with running(FakeService(attach=a_traced_process(23)), path), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        head = b"POST /v1/processes/23 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n"
        connection.sendall(head + b"expect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"{}")
        assert connection.recv(1000).startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize(
    ("sent", "stays_open"),
    [
        (STATUS, True),
        (STATUS.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), False),
        (b"GET /v1/status HTTP/1.0\r\n\r\n", False),
    ],
)
def test_the_client_decides_whether_the_connection_stays(path, sent, stays_open):
    """HTTP/1.1 keeps it, by default; the end of the answer does not depend on it."""
    with running(FakeService(stats=some_stats()), path), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        answers = []
        for _ in range(2):
            try:
                connection.sendall(sent)
                answer = http.client.HTTPResponse(connection)
                answer.begin()
            except (ConnectionError, http.client.RemoteDisconnected):
                break
            answer.read()
            answers.append(answer.status)
    assert answers == [200] * (1 + stays_open)


def test_a_path_is_unescaped_once(path):
    """%2570 is %70 and not p."""
    with running(FakeService(stats=some_stats()), path):
        assert exchanged(path, STATUS.replace(b"status", b"%73tatus"))[0].status == 200
        assert exchanged(path, STATUS.replace(b"status", b"%2573tatus"))[0].status == 404


def test_a_request_is_completed_after_its_client_left(path):
    """Ctrl-C in `bpfleakctl attach` does not leave half an attach."""
    asked, gone, done = threading.Event(), threading.Event(), threading.Event()

    def slow() -> object:
        asked.set()
        assert gone.wait(10)
        done.set()
        return a_traced_process(23)

    service = FakeService(attach=lambda *_, **__: asyncio.to_thread(slow), stats=some_stats())
    with running(service, path):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b"POST /v1/processes/23 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert asked.wait(10)
        assert exchanged(path, STATUS)[0].status == 200
        gone.set()
        assert done.wait(10)
