"""A connection with deadlines, around the HTTP protocol.

Rules:
  - A request's headers are complete within `headers_s` of the connection, or of the request's first byte.
  - Between two requests a connection rests for `idle_s` at most.
  - While there is data to send, the peer reads some of it within every `idle_s`.

It passes on a little data at a time: parsing stalls the loop, and every connection may have data.

The application, not the HTTP protocol, reports when a request begins and ends (gates.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from msgspec import Struct

# A peer that reads less than this in `idle_s`, and not everything, occupies memory on purpose.
_PROGRESS_BYTES = 64 << 10
_NO_LIMIT = 1 << 62
_READ_BYTES = 16 << 10


class Deadlines(Struct, frozen=True):
    """In seconds; the module's rules define them."""

    headers_s: float = 5.0
    idle_s: float = 15.0


class _Phase(Enum):
    HEADERS = auto()
    ANSWERING = auto()
    IDLE = auto()


class Connection(asyncio.BufferedProtocol):
    """Passes everything to the protocol that `speak` creates, until a deadline passes.

    Calls `closed` once the connection is gone.
    """

    def __init__(
        self,
        speak: Callable[[Connection], asyncio.Protocol],
        closed: Callable[[], None],
        deadlines: Deadlines,
    ) -> None:
        self._inner = speak(self)
        self._closed = closed
        self._deadlines = deadlines
        self._phase = _Phase.HEADERS
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_before = 0
        self._read = bytearray()

    @property
    def unsent_bytes(self) -> int:
        """The bytes of answers that wait to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # Called by the application.

    def request_began(self) -> None:
        """The headers of a request are complete, and its answer is being made."""
        self._enter(_Phase.ANSWERING)

    def request_ended(self) -> None:
        """The answer is being sent."""
        self._enter(_Phase.IDLE)

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # The application never waits for the peer: unsent data waits here, subject to the deadlines.
        transport.set_write_buffer_limits(high=_NO_LIMIT)
        self._enter(_Phase.HEADERS)
        self._inner.connection_made(transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        self._read = bytearray(_READ_BYTES)
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        data, self._read = bytes(memoryview(self._read)[:nbytes]), bytearray()
        if self._phase is _Phase.IDLE:
            self._enter(_Phase.HEADERS)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._transport = None
        self._inner.connection_lost(exc)
        self._closed()

    # Internals.

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._arm()

    def _arm(self) -> None:
        self._disarm()
        if self._transport is None:
            return
        self._unsent_before = self.unsent_bytes
        in_s = self._deadlines.headers_s if self._phase is _Phase.HEADERS else self._deadlines.idle_s
        self._timer = asyncio.get_running_loop().call_later(in_s, self._on_deadline)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_deadline(self) -> None:
        assert self._transport is not None
        unsent_bytes = self.unsent_bytes
        if unsent_bytes and (self._phase is _Phase.HEADERS or not self._was_taken(unsent_bytes)):
            self._transport.abort()
        elif unsent_bytes or self._phase is _Phase.ANSWERING:
            self._arm()
        else:
            # This ends at once if nothing is left to send.
            self._transport.close()

    def _was_taken(self, unsent_bytes: int) -> bool:
        """Whether the peer has read some data since the last check, or everything."""
        grew = unsent_bytes > self._unsent_before
        return grew or unsent_bytes <= self._unsent_before - _PROGRESS_BYTES
