"""HTTP/1.1 on a connection: h11 parses and frames; this passes requests to the application in order.

h11 takes some µs for each line, each piece of a body and each parameter. It parses in the loop, so a request
has few of them, or is refused before they are parsed.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus

import h11
import structlog

from bpfleakd.api.answers import error_answer
from bpfleakd.api.connection import Connection
from bpfleakd.api.gates import RequestTurns
from bpfleakd.api.messages import Response, request_for
from bpfleakd.api.peer import Peer

log = structlog.get_logger()

# A request line and headers: bpfleakctl's have some hundred bytes, a browser's cookies may add thousands.
_HEADERS_MAX_BYTES = 16 << 10
_HEADER_LINES_MAX = 100
_PARAMETERS_MAX = 100
# No request needs a body.
_BODY_MAX_BYTES = 16 << 10
_HEADERS_END = re.compile(rb"\n\r?\n")
# A large answer is sent in pieces, so others get their turn in between.
_PIECE_BYTES = 256 << 10


class HttpProtocol(asyncio.Protocol):
    """`turns` answers requests in order; the body of a request is ignored.

    The object is in `open_ones` while the connection is open.
    """

    def __init__(
        self, connection: Connection, turns: RequestTurns, open_ones: set[HttpProtocol], peer: Peer | None
    ) -> None:
        self._connection = connection
        self._turns = turns
        self._open_ones = open_ones
        self._peer = peer
        self.closed = asyncio.Event()
        self._http = h11.Connection(h11.SERVER, _HEADERS_MAX_BYTES)
        self._transport: asyncio.Transport | None = None
        self._request: h11.Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    def close(self) -> None:
        """Close once current answers are sent."""
        self._is_closing = True
        if self._task is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End now, whatever is in progress."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_ones.add(self)

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        if self._task is None:
            self._proceed()
        elif self._transport is not None:
            # The next request, already: what follows it waits in the kernel.
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # A request is still completed: an attach is not undone because its client has gone.
        self._transport = None
        self._open_ones.discard(self)
        self.closed.set()

    # Internals.

    def _proceed(self) -> None:
        """Process the received data, up to the end of a request."""
        while self._task is None and self._transport is not None:
            try:
                if self._has_many_lines():
                    words = f"a request may have {_HEADER_LINES_MAX} headers"
                    self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words)
                    return
                event = self._http.next_event()
            except h11.RemoteProtocolError:
                self._refuse(HTTPStatus.BAD_REQUEST, "this is not a valid HTTP request")
                return
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    self._send(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
                return
            if isinstance(event, h11.Request):
                if fault := _fault(event):
                    self._refuse(*fault)
                    return
                self._request = event
            elif isinstance(event, h11.EndOfMessage):
                assert self._request is not None
                self._task = asyncio.get_running_loop().create_task(self._respond(self._request))
                self._task.add_done_callback(self._responded)
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return

    async def _respond(self, asked: h11.Request) -> None:
        headers = {name.decode("latin-1"): text.decode("latin-1") for name, text in asked.headers}
        method, target = asked.method.decode("latin-1"), asked.target.decode("latin-1")
        request = request_for(method, target, headers, self._peer)
        response = await self._turns.answer(self._connection, request)
        self._begin(response)
        if method != "HEAD":
            for start in range(0, len(response.body), _PIECE_BYTES):
                if start:
                    await asyncio.sleep(0)
                self._send(h11.Data(data=response.body[start : start + _PIECE_BYTES]))
        self._send(h11.EndOfMessage())

    def _responded(self, task: asyncio.Task[None]) -> None:
        self._task = None
        self._connection.request_ended()
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            log.error("api.failed", exc_info=failure)
        if self._transport is None:
            return
        is_next_possible = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if self._is_closing or not is_next_possible:
            self._transport.close()
            return
        self._http.start_next_cycle()
        self._transport.resume_reading()
        self._proceed()

    def _has_many_lines(self) -> bool:
        """Whether the next request, as far as it has arrived, has too many headers."""
        if self._http.their_state is not h11.IDLE:
            return False
        received, _is_whole = self._http.trailing_data
        end = _HEADERS_END.search(received)
        return received.count(b"\n", 0, end.start() if end else len(received)) > _HEADER_LINES_MAX

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Refuse a request, unless the answer has begun, and close: the rest is not parsed."""
        assert self._transport is not None
        self._is_closing = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error_answer(status, "bad-request", reason)
            self._begin(response)
            self._send(h11.Data(data=response.body))
            self._send(h11.EndOfMessage())
        self._transport.close()

    def _begin(self, response: Response) -> None:
        headers = list(response.headers.items())
        if self._is_closing:
            headers.append(("connection", "close"))
        self._send(h11.Response(status_code=response.status, headers=headers))

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _fault(request: h11.Request) -> tuple[HTTPStatus, str] | None:
    """Why a request is refused without its body."""
    headers = dict(request.headers)
    if b"transfer-encoding" in headers:
        return HTTPStatus.LENGTH_REQUIRED, "a body must have a Content-Length"
    if int(headers.get(b"content-length", b"0")) > _BODY_MAX_BYTES:
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have {_BODY_MAX_BYTES} bytes"
    if request.target.count(b"&") >= _PARAMETERS_MAX:
        return HTTPStatus.BAD_REQUEST, f"a request may have {_PARAMETERS_MAX} parameters"
    return None
