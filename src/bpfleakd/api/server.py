"""The sockets of the API: a unix socket with everything, and TCP (if wanted) that only reads.

uvicorn serves both, inside the daemon's own loop: it installs no signal handlers and logs no requests.
The sockets are bound by listeners.py rather than by uvicorn, which ends the process where an address is
in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

import structlog
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from bpfleakd.api.app import Exposition, create_app
from bpfleakd.api.listeners import BACKLOG, bind_tcp, bind_unix
from bpfleakd.api.peer import peer_of
from bpfleakd.api.service import Service

__all__ = ["ApiServer"]

log = structlog.get_logger()


class ApiServer:
    """Serves `service` until `stop`. Without a `tcp_address` only on the unix socket, /metrics included."""

    def __init__(
        self,
        service: Service,
        exposition: Exposition,
        *,
        socket_path: Path,
        socket_group: str | None = None,
        tcp_address: str | None = None,
        tcp_port: int = 0,
    ) -> None:
        self._service = service
        self._exposition = exposition
        self._socket_path = socket_path
        self._socket_group = socket_group
        self._tcp_address = tcp_address
        self._tcp_port = tcp_port
        self._inode = 0
        self._running: list[tuple[_Server, asyncio.Task[None]]] = []

    async def start(self) -> None:
        """Bind both sockets and serve; at return a client can connect.

        Raises ConfigError for an address that cannot be used, AccessDenied for a directory or port that
        needs more rights, AlreadyRunning if another daemon answers on the socket. Nothing is left bound then.
        """
        with contextlib.ExitStack() as undo:
            unix = undo.enter_context(contextlib.closing(bind_unix(self._socket_path, self._socket_group)))
            self._inode = self._socket_path.lstat().st_ino
            undo.callback(self._unlink)
            apps = [(unix, create_app(self._service, self._exposition, read_only=False))]
            if self._tcp_address is not None:
                tcp = await bind_tcp(self._tcp_address, self._tcp_port)
                self._tcp_port = tcp.getsockname()[1]
                undo.enter_context(contextlib.closing(tcp))
                local_names_only = ipaddress.ip_address(tcp.getsockname()[0]).is_loopback
                reading = create_app(
                    self._service, self._exposition, read_only=True, local_names_only=local_names_only
                )
                apps.append((tcp, reading))
            undo.pop_all()
        for listener, app in apps:
            await self._serve(listener, app)
        log.info("api.listening", socket=self._socket_path, tcp=self._tcp_address, port=self.tcp_port)

    async def stop(self) -> None:
        """Answer what was asked, close the sockets and remove the socket file. May be called twice."""
        running, self._running = self._running, []
        for server, _ in running:
            server.stopping.set()
        if running:
            await asyncio.gather(*(task for _, task in running))
            self._unlink()

    @property
    def tcp_port(self) -> int | None:
        """The TCP port, as bound (port 0 lets the kernel choose); None without TCP."""
        return None if self._tcp_address is None else self._tcp_port

    async def _serve(self, listener: socket.socket, app: Starlette) -> None:
        server = _Server(_uvicorn_config(app))
        task = asyncio.create_task(server.serve(sockets=[listener]), name="api")
        self._running.append((server, task))
        serving = asyncio.create_task(server.serving.wait())
        await asyncio.wait({task, serving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            serving.cancel()
            task.result()

    def _unlink(self) -> None:
        """Remove the socket file, unless it is another daemon's by now."""
        with contextlib.suppress(FileNotFoundError):
            if self._socket_path.lstat().st_ino == self._inode:
                self._socket_path.unlink()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and waiting for an event instead of polling ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.serving.set()
        await self.stopping.wait()


class _Protocol(H11Protocol):
    """HTTP/1.1, with `peer` in the state of every request that comes over the unix socket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            self.app_state = {**self.app_state, "peer": peer_of(connection)}


def _uvicorn_config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        loop="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        workers=1,
        backlog=BACKLOG,
        timeout_graceful_shutdown=2,
    )
