"""Accepts connections from a listening socket, and cheaply refuses those beyond the limits."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from http import HTTPStatus

import structlog

from bpfleakd.api.admission import Admission, PeerKey, has_room, peer_key
from bpfleakd.api.answers import error_answer
from bpfleakd.api.connection import Connection, Deadlines
from bpfleakd.api.local_users import LocalUsers
from bpfleakd.errors import DaemonUnreachable

log = structlog.get_logger()

# Connections accepted at a time; between two batches the loop serves the existing ones.
_BATCH = 16
# The pause if there is no descriptor or memory for a connection: the kernel queues those that wait.
_PAUSE_S = 1.0
# One log line per period reports the number of refusals.
_REPORT_S = 60.0


class Acceptor:
    """Accepts on `listener` until `close`; `speak` creates the protocol of a connection."""

    def __init__(
        self,
        listener: socket.socket,
        speak: Callable[[Connection, socket.socket], asyncio.Protocol],
        admission: Admission,
        deadlines: Deadlines,
    ) -> None:
        self._listener = listener
        self._speak = speak
        self._admission = admission
        self._deadlines = deadlines
        self._users = LocalUsers()
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Connection, PeerKey] = {}
        self._being_made: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._reported_count = 0
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def may_answer(self, connection: Connection) -> bool:
        """Whether there is room for one more unread answer to a connection."""
        unsent = ((peer, each.unsent_bytes) for each, peer in self._connections.items())
        return has_room(self._connections.get(connection), unsent)

    async def close(self) -> None:
        """Stop accepting. All accepted connections exist at return, and stay open."""
        self._loop.remove_reader(self._listener)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._listener.close()
        await asyncio.gather(*self._being_made)
        self._users.close()

    def _accept(self) -> None:
        for _ in range(_BATCH):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.warning("api.not-accepting", reason=error.strerror, retry_s=_PAUSE_S)
                self._loop.remove_reader(self._listener)
                self._after(_PAUSE_S, "resume", self._resume)
                return
            self._take(connection, address)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _take(self, connection: socket.socket, address: object) -> None:
        connection.setblocking(False)
        try:
            peer = peer_key(connection, address, self._users)
        except (OSError, ValueError):  # it has gone
            connection.close()
            return
        if not self._admission.admit(peer):
            _refuse(connection)
            self._report(peer)
            return
        task = self._loop.create_task(self._make(connection, peer))
        self._being_made.add(task)
        task.add_done_callback(self._being_made.discard)

    async def _make(self, connection: socket.socket, peer: PeerKey) -> None:
        made = Connection(
            lambda around: self._speak(around, connection), lambda: self._lost(made, peer), self._deadlines
        )
        self._connections[made] = peer
        try:
            await self._loop.connect_accepted_socket(lambda: made, connection)
        except OSError:
            connection.close()
            self._lost(made, peer)

    def _lost(self, connection: Connection, peer: PeerKey) -> None:
        self._connections.pop(connection, None)
        self._admission.release(peer)

    def _report(self, peer: PeerKey) -> None:
        """Log the first refusal, and then one line per minute for all."""
        if "report" not in self._timers:
            self._log_refused(peer)
            self._after(_REPORT_S, "report", lambda: self._report_more(peer))

    def _report_more(self, peer: PeerKey) -> None:
        if self._admission.refused_count > self._reported_count:
            self._report(peer)

    def _log_refused(self, peer: PeerKey) -> None:
        count = self._admission.refused_count - self._reported_count
        self._reported_count = self._admission.refused_count
        log.warning("api.refused", connections=count, last_peer=" ".join(map(str, peer)))

    def _after(self, in_s: float, name: str, act: Callable[[], None]) -> None:
        def due() -> None:
            del self._timers[name]
            act()

        self._timers[name] = self._loop.call_later(in_s, due)


def _refuse(connection: socket.socket) -> None:
    """Send a refusal, if that is possible without waiting, and close."""
    with contextlib.suppress(OSError):
        # Unread data would turn the close into a reset, which discards the answer.
        connection.recv(16 << 10)
    with contextlib.suppress(OSError):
        connection.send(_REFUSAL)
    connection.close()


def _refusal() -> bytes:
    answer = error_answer(
        HTTPStatus.SERVICE_UNAVAILABLE,
        DaemonUnreachable.code,
        "the daemon has reached its connection limit, in total or for you",
        "close some, and retry in a few seconds",
    )
    lines = ["HTTP/1.1 503 Service Unavailable", "connection: close", "retry-after: 5"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + answer.body


_REFUSAL = _refusal()
