"""A conversation with a server that is well-behaved, and with some that are not."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from bpfleakd.runtimes.v8.websocket import BadConversation, WebSocket, WebSocketConnection

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Server:
    """The other end of a socket pair."""

    def __init__(self, theirs: socket.socket) -> None:
        self.socket = theirs

    def accept(self, request: bytes) -> None:
        key = re.search(rb"Sec-WebSocket-Key: (\S+)\r\n", request)[1]
        answer = base64.b64encode(hashlib.sha1(key + GUID).digest())
        self.socket.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: " + answer + b"\r\n\r\n"
        )

    def send(self, data: bytes, opcode: int = 1, *, fin: bool = True) -> None:
        size = len(data)
        head = bytes([(0x80 if fin else 0) | opcode])
        head += bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
        self.socket.sendall(head + data)

    def received(self) -> tuple[int, bytes]:
        head = self.socket.recv(2, socket.MSG_WAITALL)
        size = head[1] & 0x7F
        if size == 126:
            size = struct.unpack(">H", self.socket.recv(2, socket.MSG_WAITALL))[0]
        mask = self.socket.recv(4, socket.MSG_WAITALL)
        data = self.socket.recv(size, socket.MSG_WAITALL) if size else b""
        return head[0] & 0x0F, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Server]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Server(theirs)


@pytest.fixture
def talking(pair: tuple[socket.socket, Server], monkeypatch: pytest.MonkeyPatch) -> tuple[WebSocket, Server]:
    """A websocket after the server's handshake; `os.urandom` makes the client's key."""
    ours, server = pair
    monkeypatch.setattr("os.urandom", bytes)
    key = base64.b64encode(bytes(16))
    server.accept(b"Sec-WebSocket-Key: " + key + b"\r\n")
    found = WebSocket(
        WebSocketConnection(ours.fileno(), time.monotonic() + 5, 1 << 20), "localhost", "/x", 1_000
    )
    request = server.socket.recv(4096)
    assert request.startswith(b"GET /x HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n")
    assert key in request
    return found, server


@pytest.mark.parametrize("size", [0, 5, 125, 126, 900])
def test_messages_in_both_directions(talking: tuple[WebSocket, Server], size: int) -> None:
    """Ours are masked; theirs may come in parts, with a ping between them."""
    websocket, server = talking
    websocket.send(b"a" * size)
    assert server.received() == (1, b"a" * size)

    server.send(b"b" * size, fin=False)
    server.send(b"ping", opcode=9)
    server.send(b"c", opcode=0)
    assert websocket.receive() == b"b" * size + b"c"
    assert server.received() == (10, b"ping")

    server.send(b"late")
    server.send(b"", opcode=8)
    websocket.wait_for_close()
    server.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.socket.recv(1)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x81\x7f" + struct.pack(">Q", 1 << 62),  # longer than may be
        b"\x81\x80aaaa",  # masked
        b"\xc1\x00",  # a reserved bit
        b"\x82\x00",  # not text
        b"\x80\x00",  # a continuation without a beginning
        b"\x89\x7e\x00\x80",  # a ping that is too long
        b"\x09\x00",  # a ping in parts
        b"\x88\x00",  # goodbye
    ],
)
def test_what_was_not_agreed_on(talking: tuple[WebSocket, Server], frame: bytes) -> None:
    """The conversation ends."""
    websocket, server = talking
    server.socket.sendall(frame + bytes(200))
    with pytest.raises(BadConversation):
        websocket.receive()


def test_one_that_never_ends_its_header(pair: tuple[socket.socket, Server]) -> None:
    """No more is kept than a header has."""
    ours, server = pair
    server.socket.setblocking(False)
    server.socket.send(b"x" * 100_000)
    with pytest.raises(BadConversation, match="header"):
        WebSocket(WebSocketConnection(ours.fileno(), time.monotonic() + 5, 1 << 20), "localhost", "/", 1_000)


def test_one_that_says_nothing(pair: tuple[socket.socket, Server]) -> None:
    """It is waited for until the deadline."""
    ours, _server = pair
    with pytest.raises(BadConversation, match="in time"):
        WebSocketConnection(ours.fileno(), time.monotonic() + 0.01, 1 << 20).get("localhost", "/json/list")


def test_one_that_says_too_much(pair: tuple[socket.socket, Server]) -> None:
    """All answers together have a limit."""
    ours, server = pair
    server.socket.sendall(bytes(2_000))
    with pytest.raises(BadConversation, match="too long"):
        WebSocketConnection(ours.fileno(), time.monotonic() + 5, 1_000).exactly(1_500)


def test_one_that_is_no_websocket(pair: tuple[socket.socket, Server]) -> None:
    """Any answer but the right one is refused."""
    ours, server = pair
    server.socket.sendall(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: x\r\n\r\n")
    with pytest.raises(BadConversation, match="accept"):
        WebSocket(WebSocketConnection(ours.fileno(), time.monotonic() + 5, 1 << 20), "localhost", "/", 1_000)
