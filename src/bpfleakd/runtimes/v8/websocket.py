"""A websocket client with the part of RFC 6455 that a conversation with an inspector needs.

It reads and writes a descriptor that is already connected, so it runs where nothing can be opened. Incoming
data is bounded by the sizes of a message and of all, and by a deadline.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import select
import struct
import time

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEADER_MAX_BYTES = 16 << 10
_READ_BYTES = 1 << 16
_FIN, _RESERVED, _OPCODE, _MASKED = 0x80, 0x70, 0x0F, 0x80
_CONTINUATION, _TEXT, _CLOSE, _PING, _PONG = 0, 1, 8, 9, 10
_CONTROL_MAX_BYTES = 125
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,8}) *\r\n", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class BadConversation(Exception):
    """The other end does not answer, or sends invalid data."""


class Closed(BadConversation):
    """The other end has closed the connection."""


class WebSocketConnection:
    """A descriptor to read and write until `deadline_s` (time.monotonic), `limit_bytes` in all."""

    def __init__(self, descriptor: int, deadline_s: float, limit_bytes: int) -> None:
        self.deadline_s = deadline_s
        self._descriptor = descriptor
        self._left_bytes = limit_bytes
        self._data = bytearray()

    def write(self, data: bytes) -> None:
        """Send all of it. Raises BadConversation."""
        while data:
            self._wait(select.POLLOUT)
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise BadConversation(f"the connection broke: {error.strerror}") from error

    def exactly(self, size_bytes: int) -> bytes:
        """The next bytes. Raises BadConversation."""
        while len(self._data) < size_bytes:
            self._more()
        taken = bytes(self._data[:size_bytes])
        del self._data[:size_bytes]
        return taken

    def header(self) -> bytes:
        """The received data up to an empty line, including it. Raises BadConversation."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            if len(self._data) > _HEADER_MAX_BYTES:
                raise BadConversation("its answer has too long a header")
            self._more()
        return self.exactly(end + 4)

    def get(self, host: str, path: str) -> bytes:
        """The body of an HTTP answer. Raises BadConversation."""
        self.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("ascii"))
        header = self.header()
        status, length = _STATUS.match(header), _CONTENT_LENGTH.search(header)
        if not status or status[1] != b"200" or not length or int(length[1]) > _READ_BYTES:
            raise BadConversation("it does not answer as an inspector does")
        return self.exactly(int(length[1]))

    def is_quiet(self, until_s: float) -> bool:
        """Whether nothing arrives until then."""
        left_s = min(until_s, self.deadline_s) - time.monotonic()
        return not self._data and not _poll(self._descriptor, select.POLLIN, left_s)

    def _more(self) -> None:
        self._wait(select.POLLIN)
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise BadConversation(f"the connection broke: {error.strerror}") from error
        if not data:
            raise Closed("it closed the connection")
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise BadConversation("its answers are too long")
        self._data += data

    def _wait(self, event: int) -> None:
        if not _poll(self._descriptor, event, self.deadline_s - time.monotonic()):
            raise BadConversation("it does not answer in time")


class WebSocket:
    """Text messages, after the handshake."""

    def __init__(self, connection: WebSocketConnection, host: str, path: str, message_max_bytes: int) -> None:
        """Raises BadConversation."""
        self._connection = connection
        self._message_max_bytes = message_max_bytes
        key = base64.b64encode(os.urandom(16))
        lines = (
            *(f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"),
            *(f"Sec-WebSocket-Key: {key.decode()}", "Sec-WebSocket-Version: 13", "", ""),
        )
        connection.write("\r\n".join(lines).encode("ascii"))
        header = connection.header()
        status = _STATUS.match(header)
        expected = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
        if not status or status[1] != b"101" or expected not in header:
            raise BadConversation("it does not accept a websocket")

    def send(self, text: bytes) -> None:
        """Send a message. Raises BadConversation."""
        self._send(_TEXT, text)

    def receive(self) -> bytes:
        """The next message; pings are answered. Raises BadConversation."""
        message = bytearray()
        is_begun = False
        while True:
            first, second = self._connection.exactly(2)
            opcode, size = first & _OPCODE, second & ~_MASKED
            if first & _RESERVED or second & _MASKED:
                raise BadConversation("it violates the protocol")
            if opcode >= _CLOSE:
                self._answer(opcode, size, is_whole=bool(first & _FIN))
                continue
            if opcode not in (_TEXT, _CONTINUATION) or (opcode == _CONTINUATION) is not is_begun:
                raise BadConversation("it sends what is no text")
            if size >= 126:
                kind = ">H" if size == 126 else ">Q"
                size = struct.unpack(kind, self._connection.exactly(struct.calcsize(kind)))[0]
            if len(message) + size > self._message_max_bytes:
                raise BadConversation("its answer is too long")
            message += self._connection.exactly(size)
            is_begun = True
            if first & _FIN:
                return bytes(message)

    def wait_for_close(self) -> None:
        """Wait until the other end closes, without sending anything.

        Raises BadConversation if it does not.
        """
        try:
            while True:
                self.receive()
        except Closed:
            return

    def _answer(self, opcode: int, size: int, *, is_whole: bool) -> None:
        if size > _CONTROL_MAX_BYTES or not is_whole or opcode not in (_CLOSE, _PING, _PONG):
            raise BadConversation("it violates the protocol")
        data = self._connection.exactly(size)
        if opcode == _CLOSE:
            raise Closed("it closed the connection")
        if opcode == _PING:
            self._send(_PONG, data)

    def _send(self, opcode: int, data: bytes) -> None:
        mask = os.urandom(4)
        size = len(data)
        if size < 126:
            head = struct.pack(">BB", _FIN | opcode, _MASKED | size)
        else:
            head = struct.pack(">BBH", _FIN | opcode, _MASKED | 126, size)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self._connection.write(head + mask + masked)


def _poll(descriptor: int, event: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, event)
    return bool(poller.poll(max(0.0, timeout_s) * 1000))
