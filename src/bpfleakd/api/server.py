"""The sockets of the API: a unix socket for everything, and optional read-only TCP.

The daemon's own loop serves both, without a web framework: those take 9 MB, as they import TLS, command lines
and subprocesses.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from pathlib import Path

import structlog

from bpfleakd.api.acceptor import Acceptor
from bpfleakd.api.admission import Admission
from bpfleakd.api.app import Exposition, create_app
from bpfleakd.api.connection import Connection, Deadlines
from bpfleakd.api.gates import RequestTurns
from bpfleakd.api.http_protocol import HttpProtocol
from bpfleakd.api.listeners import bind_tcp, bind_unix
from bpfleakd.api.messages import Handler
from bpfleakd.api.peer import peer_of
from bpfleakd.api.service import Service

log = structlog.get_logger()

# How long the end of the daemon waits for answers in progress.
_STOP_LIMIT_S = 2.0


class ApiServer:
    """Serves `service` until `stop`.

    Without `tcp` (address, port) only the unix socket, including /metrics.
    """

    def __init__(
        self,
        service: Service,
        exposition: Exposition,
        *,
        socket_path: Path,
        socket_group: str | None = None,
        tcp: tuple[str, int] | None = None,
        details: bool = False,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._service = service
        self._exposition = exposition
        self._socket_path = socket_path
        self._socket_group = socket_group
        self._tcp = tcp
        self._details = details
        self._deadlines = deadlines or Deadlines()
        self._inode = 0
        self._running: list[_Listening] = []

    async def start(self) -> None:
        """Bind both sockets and serve; at return a client can connect.

        Raises ConfigError for an unusable address, AccessDenied for a directory or port that requires more
        rights, AlreadyRunning if another daemon answers on the socket, and then leaves nothing bound.
        """
        with contextlib.ExitStack() as undo:
            unix = undo.enter_context(contextlib.closing(bind_unix(self._socket_path, self._socket_group)))
            self._inode = self._socket_path.lstat().st_ino
            undo.callback(self._unlink)
            apps = [(unix, create_app(self._service, self._exposition, read_only=False))]
            if self._tcp is not None:
                tcp = await bind_tcp(*self._tcp)
                self._tcp = self._tcp[0], tcp.getsockname()[1]
                undo.enter_context(contextlib.closing(tcp))
                local_names_only = ipaddress.ip_address(tcp.getsockname()[0]).is_loopback
                reading = create_app(
                    self._service,
                    self._exposition,
                    read_only=True,
                    details=self._details,
                    local_names_only=local_names_only,
                )
                apps.append((tcp, reading))
            undo.pop_all()
        for listener, app in apps:
            listening = _Listening(listener, app, self._deadlines, queued=listener is not unix)
            listening.start()
            self._running.append(listening)
        log.info("api.listening", socket=self._socket_path, address=self._tcp)

    async def stop(self) -> None:
        """Finish current answers, close the sockets and remove the socket file. May be called twice."""
        running, self._running = self._running, []
        if running:
            await asyncio.gather(*(listening.stop() for listening in running))
            self._unlink()

    @property
    def tcp_port(self) -> int | None:
        """The TCP port, as bound (port 0 lets the kernel choose); None without TCP."""
        return None if self._tcp is None else self._tcp[1]

    def _unlink(self) -> None:
        """Remove the socket file, unless another daemon owns it."""
        with contextlib.suppress(FileNotFoundError):
            if self._socket_path.lstat().st_ino == self._inode:
                self._socket_path.unlink()


class _Listening:
    """A listening socket and its connections, within limits and deadlines."""

    def __init__(self, listener: socket.socket, app: Handler, deadlines: Deadlines, *, queued: bool) -> None:
        self._listener = listener
        self._deadlines = deadlines
        self._turns = RequestTurns(app, lambda each: self._acceptor.may_answer(each), queued=queued)
        self._open: set[HttpProtocol] = set()

    def start(self) -> None:
        self._acceptor = Acceptor(self._listener, self._speak, Admission(), self._deadlines)

    async def stop(self) -> None:
        await self._acceptor.close()
        closing = tuple(self._open)
        for protocol in closing:
            protocol.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_LIMIT_S):
                for protocol in closing:
                    await protocol.closed.wait()
        for protocol in tuple(self._open):
            protocol.abort()

    def _speak(self, connection: Connection, accepted: socket.socket) -> asyncio.Protocol:
        peer = peer_of(accepted) if accepted.family == socket.AF_UNIX else None
        return HttpProtocol(connection, self._turns, self._open, peer)
