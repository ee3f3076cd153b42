"""The checks that every request passes before it is answered: permission, and limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus

from bpfleakd.api.answers import error_answer
from bpfleakd.api.connection import Connection
from bpfleakd.api.messages import Handler, Request, Response
from bpfleakd.errors import DaemonUnreachable
from bpfleakd.printable import printable

_READING = ("GET", "HEAD")

# This many answers per address are computed at a time; further requests wait.
_AT_ONCE = 2
# How often, and with which pauses, a request checks whether the peer has read its answers.
_ROOM_LOOKS = 100
_ROOM_LOOK_S = 0.02
# Answered from memory, so a scrape never waits.
_PROMPT = re.compile(r"/metrics|/|/assets/.*")

# A Host header with an address, or a name that always means this machine (RFC 6761), optionally with a port.
_LOCAL_NAME = re.compile(r"(\[[0-9a-f:.]+\]|[0-9.]+|([a-z0-9-]+\.)*localhost\.?)(:[0-9]+)?", re.IGNORECASE)


def read_only_gate(handler: Handler) -> Handler:
    """Refuses, before any routing, requests that could change something."""

    async def gated(request: Request) -> Response:
        if request.method in _READING:
            return await handler(request)
        refusal = error_answer(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "method-not-allowed",
            f"{request.method} is not allowed here: this address is read-only",
            "attach and detach go over the daemon's unix socket: bpfleakctl attach PID",
        )
        refusal.headers["allow"] = ", ".join(_READING)
        return refusal

    return gated


def local_names_only_gate(handler: Handler) -> Handler:
    """Refuses requests to another host than an address or localhost.

    A web page can make its name resolve to 127.0.0.1 and then read the answers of this address in the browser
    of its visitors (DNS rebinding). The browser still sends the page's name.
    """

    async def gated(request: Request) -> Response:
        host = request.headers.get("host", "localhost")
        if _LOCAL_NAME.fullmatch(host):
            return await handler(request)
        return error_answer(
            HTTPStatus.MISDIRECTED_REQUEST,
            "not-this-host",
            f"{printable(host)!r} is not an accepted Host for this address",
            "use an IP address or localhost",
        )

    return gated


class RequestTurns:
    """Limits the simultaneous cost of an address' requests, and tells connections when requests begin.

    `may_answer` returns whether a connection may have one more unread answer. If not, the request waits:
    large answers that are being read are gone in a moment; only those that nobody reads remain.
    """

    def __init__(self, handler: Handler, may_answer: Callable[[Connection], bool], *, queued: bool) -> None:
        self._handler = handler
        self._may_answer = may_answer
        self._turn = asyncio.Semaphore(_AT_ONCE) if queued else None

    async def answer(self, connection: Connection, request: Request) -> Response:
        """The answer, or the refusal of one more."""
        connection.request_began()
        if not await self._has_room(connection):
            return _BUSY
        if self._turn is None or _PROMPT.fullmatch(request.path):
            return await self._handler(request)
        async with self._turn:
            return await self._handler(request)

    async def _has_room(self, connection: Connection) -> bool:
        for _look in range(_ROOM_LOOKS):
            if self._may_answer(connection):
                return True
            await asyncio.sleep(_ROOM_LOOK_S)
        return False


_BUSY = error_answer(
    HTTPStatus.SERVICE_UNAVAILABLE,
    DaemonUnreachable.code,
    "too many of your answers are waiting to be read",
    "read them, or close their connections",
)
