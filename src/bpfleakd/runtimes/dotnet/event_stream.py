"""A session that stays open, read a little at each tick.

Rules:
- It is opened in a thread of its own; reading never waits.
- A stream that ends or cannot be read is begun again after a while, some times, and then given up.
- Closing it is all that is needed: the runtime ends the session at its next event.
"""

from __future__ import annotations

import queue
import struct
import threading
from collections.abc import Callable

from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError, Session
from bpfleakd.runtimes.dotnet.nettrace import BadNettrace, Event, NettraceReader

__all__ = ["EventStream"]

_AGAIN_NS = 30_000_000_000
_FAILURES_MAX = 3
# Of one stream at a tick: to read it takes a tenth of a second.
_READ_LIMIT_BYTES = 1 << 20


class EventStream:
    """The events of one session. `start` opens it and raises DiagnosticsError; `failure` says why not.

    `read_bytes` came in all; it was opened first at `open_since_ns`.
    """

    def __init__(self, start: Callable[[], Session], not_before_ns: int) -> None:
        self.failure: str | None = None
        self.read_bytes = 0
        self.open_since_ns: int | None = None
        self._start = start
        self._due_ns = not_before_ns
        self._failures = 0
        self._is_opening = False
        self._is_closed = False
        self._session: Session | None = None
        self._reader = NettraceReader()
        self._opened: queue.SimpleQueue[Session | DiagnosticsError] = queue.SimpleQueue()

    def read(self, now_ns: int) -> list[Event]:
        """The events since the last time; opens the session when it is time to."""
        self._take_opened(now_ns)
        if self._session is None:
            self._open_if_due(now_ns)
            return []
        data = self._session.read(_READ_LIMIT_BYTES)
        if data is None:
            self._fail("its event stream has ended", now_ns)
            return []
        self.read_bytes += len(data)
        try:
            return list(self._reader.feed(data))
        except (BadNettrace, struct.error) as error:
            self._failures = _FAILURES_MAX
            self._fail(f"its event stream cannot be read: {error}", now_ns)
            return []

    def close(self) -> None:
        """End the session."""
        self._is_closed = True
        self._drop()
        self._close_opened()

    def _open_if_due(self, now_ns: int) -> None:
        wanted = not self._is_closed and not self._is_opening and self._failures < _FAILURES_MAX
        if wanted and now_ns >= self._due_ns:
            self._is_opening = True
            threading.Thread(target=self._open, name="dotnet-events", daemon=True).start()

    def _open(self) -> None:
        try:
            self._opened.put(self._start())
        except DiagnosticsError as error:
            self._opened.put(error)
        if self._is_closed:
            self._close_opened()

    def _close_opened(self) -> None:
        while True:
            try:
                opened = self._opened.get_nowait()
            except queue.Empty:
                return
            if isinstance(opened, Session):
                opened.close()

    def _take_opened(self, now_ns: int) -> None:
        try:
            opened = self._opened.get_nowait()
        except queue.Empty:
            return
        self._is_opening = False
        if isinstance(opened, Session):
            self._session, self._reader, self.failure = opened, NettraceReader(), None
            self.open_since_ns = self.open_since_ns or now_ns
        else:
            self._fail(str(opened), now_ns)

    def _fail(self, failure: str, now_ns: int) -> None:
        self._drop()
        self.failure = failure
        self._failures += 1
        self._due_ns = now_ns + _AGAIN_NS

    def _drop(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
