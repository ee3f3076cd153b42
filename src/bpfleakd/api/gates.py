"""Who is let in to an address that anybody on the machine can reach."""

from __future__ import annotations

import re
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from bpfleakd.api.answers import error_answer
from bpfleakd.printable import printable

__all__ = ["LocalNamesOnly", "ReadOnly"]

_READING = ("GET", "HEAD")

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
            f"{scope['method']} is not possible here: this address only reads",
            "attach and detach go over the daemon's unix socket: bpfleakctl attach PID",
        )
        refusal.headers["allow"] = ", ".join(_READING)
        await refusal(scope, receive, send)


class LocalNamesOnly:
    """Refuses requests to another host than an address or localhost.

    A web page can have its own name resolve to 127.0.0.1 and then read, from the browser of whoever looks at
    it, what this address answers (DNS rebinding). The browser still sends the page's name.
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
                    f"{printable(host)!r} is not a name of this address",
                    "ask by address or as localhost",
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
