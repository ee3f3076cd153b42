"""A request with its headers, and the answer to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Struct

from bpfleakd.api.peer import Peer


class Request(Struct, frozen=True):
    """A request. Names of headers are in lower case; `query` has the last value of a repeated parameter.

    `path_params` are the parts of the path that its route names. `peer` is the client on the unix socket.
    """

    method: str
    path: str
    query: Mapping[str, str]
    repeated: frozenset[str]
    headers: Mapping[str, str]
    peer: Peer | None = None
    path_params: Mapping[str, str] = msgspec.field(default_factory=dict)


class Response(Struct):
    """A complete answer; the body's length is added to `headers`."""

    body: bytes
    status: int = HTTPStatus.OK
    headers: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.headers["content-length"] = str(len(self.body))


Handler = Callable[[Request], Awaitable[Response]]


def request_for(method: str, target: str, headers: Mapping[str, str], peer: Peer | None = None) -> Request:
    """Return the request for a target, as the request line has it: a path and maybe a query."""
    path, _, query = target.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    counts = Counter(name for name, _ in pairs)
    repeated = frozenset(name for name, count in counts.items() if count > 1)
    return Request(method, unquote(path), dict(pairs), repeated, headers, peer)
