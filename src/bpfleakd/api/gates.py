"""The checks that every request passes before it is answered: permission, and limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bpfleakd.api.answers import error_answer
from bpfleakd.api.connection import Connection
from bpfleakd.errors import DaemonUnreachable
from bpfleakd.printable import printable

__all__ = ["LocalNamesOnly", "ReadOnly", "RequestTurns"]

_READING = ("GET", "HEAD")

# So many answers of an address are computed at a time; the others wait for their turn.
_AT_ONCE = 2
# How often, and with which pauses, a request looks whether the peer has read its answers.
_ROOM_LOOKS = 100
_ROOM_LOOK_S = 0.02
# Answered from memory, so a scrape never waits.
_PROMPT = re.compile(r"/metrics|/|/assets/.*")

# A Host header with an address, or a name that is always this machine's (RFC 6761), and maybe a port.
_LOCAL_NAME = re.compile(r"(\[[0-9a-f:.]+\]|[0-9.]+|([a-z0-9-]+\.)*localhost\.?)(:[0-9]+)?", re.IGNORECASE)


class ReadOnly:
    """Refuses, before any routing, whatever could change something."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        refusal = error_answer(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "method-not-allowed",
            f"{scope['method']} is not allowed here: this address is read-only",
            "attach and detach go over the daemon's unix socket: bpfleakctl attach PID",
        )
        refusal.headers["allow"] = ", ".join(_READING)
        await refusal(scope, receive, send)


class LocalNamesOnly:
    """Refuses requests to another host than an address or localhost.

    A web page can make its name resolve to 127.0.0.1 and then read the answers of this address in the browser
    of its visitors (DNS rebinding). The browser still sends the page's name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "localhost")
            if not _LOCAL_NAME.fullmatch(host):
                refusal = error_answer(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "not-this-host",
                    f"{printable(host)!r} is not an accepted Host for this address",
                    "use an IP address or localhost",
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


class RequestTurns:
    """Limits what the requests of an address cost at a time, and notifies a connection when its request ends.

    `may_answer` says whether a connection may have one more answer that waits to be read. If not, the request
    waits: large answers that are being read are gone in a moment, and only those that nobody reads stay.
    """

    def __init__(self, app: ASGIApp, may_answer: Callable[[Connection], bool], *, queued: bool) -> None:
        self._app = app
        self._may_answer = may_answer
        self._turn = asyncio.Semaphore(_AT_ONCE) if queued else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope["state"]["connection"]
        connection.request_began()
        try:
            if await self._has_room(connection):
                await self._answer(scope, receive, send)
            else:
                await _BUSY(scope, receive, send)
        finally:
            connection.request_ended()

    async def _has_room(self, connection: Connection) -> bool:
        for _look in range(_ROOM_LOOKS):
            if self._may_answer(connection):
                return True
            await asyncio.sleep(_ROOM_LOOK_S)
        return False

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._turn is None or _PROMPT.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
        else:
            async with self._turn:
                await self._app(scope, receive, send)


_BUSY = error_answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    DaemonUnreachable.code,
    "too many of your answers are waiting to be read",
    "read them, or close their connections",
)
