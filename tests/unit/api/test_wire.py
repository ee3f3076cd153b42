"""Bytes of any kind on a connection: they are answered or it is closed, and the next one is served."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.connection import Deadlines

from ..samples import some_stats
from .serving import FakeService, running

PIECES = st.sampled_from(
    [
        b"GET /v1/status HTTP/1.1\r\n",
        b"POST /v1/processes/1 HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"host: localhost\r\n",
        b"content-length: 5\r\n",
        b"content-length: -1\r\n",
        b"transfer-encoding: chunked\r\n",
        b"connection: upgrade\r\nupgrade: websocket\r\n",
        b"expect: 100-continue\r\n",
        b"\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"GET /%ff%00/../..//assets/%2e%2e HTTP/1.0\r\n\r\n",
    ]
)
REQUESTS = st.lists(PIECES | st.binary(max_size=40), max_size=8).map(b"".join)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A server with a short deadline for requests."""
    path: Path = tmp_path_factory.mktemp("wire") / "bpfleakd.sock"
    with running(FakeService(stats=some_stats()), path, deadlines=Deadlines(0.05, 0.05)):
        yield path


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS)
def test_any_bytes_are_answered_or_closed(place: Path, sent: bytes):
    """And the connection ends, whatever they were."""
    with capture_logs() as lines, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(place))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(sent)
            while connection.recv(65536):
                pass
    assert [
        line for line in lines if line["log_level"] == "error" and "unexpected call" not in str(line)
    ] == []
    assert DaemonClient(place).stats() == some_stats()
