"""Handlers that disturb a process, on request only: scans, types, names and samples of a managed heap.

They log the requesting user, as attach and detach do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from bpfleakd.api.answers import json_answer
from bpfleakd.api.messages import Request, Response
from bpfleakd.api.parameters import limit_of, only_parameters, pid_of, seconds, yes_or_no
from bpfleakd.api.service import (
    BLOCKS_LISTED_MAX,
    HEAP_SAMPLE_MAX_S,
    HEAP_SAMPLE_S,
    STOP_LIMIT_MAX_S,
    STOP_LIMIT_S,
    Service,
)

log = structlog.get_logger()


class Requested:
    """The handlers; `rendered` makes large answers in another thread."""

    def __init__(
        self,
        service: Service,
        rendered: Callable[[Callable[[object], Response], object], Awaitable[Response]],
    ) -> None:
        self._service = service
        self._rendered = rendered

    async def scan(self, request: Request) -> Response:
        only_parameters(request, "older_than_s", "stop", "stop_limit_s", "limit")
        found = await self._service.scan(
            pid_of(request),
            older_than_s=seconds(request, "older_than_s"),
            stop=yes_or_no(request, "stop", True),
            stop_limit_s=seconds(request, "stop_limit_s", STOP_LIMIT_S, STOP_LIMIT_MAX_S),
            limit=limit_of(request, BLOCKS_LISTED_MAX, lowest=0) or 0,
        )
        return await self._rendered(json_answer, found)

    async def types_price(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(await self._service.types_price(pid_of(request)))

    async def types(self, request: Request) -> Response:
        only_parameters(request, "stop")
        found = await self._service.types(pid_of(request), stop=yes_or_no(request, "stop", True))
        return await self._rendered(json_answer, found)

    async def names(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(await self._service.names(pid_of(request)))

    async def request_names(self, request: Request) -> Response:
        only_parameters(request)
        pid = pid_of(request)
        log_who_asked("request-names", pid, request)
        return json_answer(await self._service.request_names(pid))

    async def heap_sample_price(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(await self._service.heap_sample_price(pid_of(request)))

    async def heap_sample(self, request: Request) -> Response:
        only_parameters(request, "sample_s")
        pid, sample_s = pid_of(request), seconds(request, "sample_s", HEAP_SAMPLE_S, HEAP_SAMPLE_MAX_S)
        log_who_asked("heap-sample", pid, request)
        return json_answer(await self._service.heap_sample(pid, sample_s=sample_s))

    async def survivors_price(self, request: Request) -> Response:
        only_parameters(request)
        return json_answer(await self._service.survivors_price(pid_of(request)))

    async def survivors(self, request: Request) -> Response:
        only_parameters(request, "sample_s")
        pid, sample_s = pid_of(request), seconds(request, "sample_s", HEAP_SAMPLE_S, HEAP_SAMPLE_MAX_S)
        log_who_asked("survivors", pid, request)
        return json_answer(await self._service.survivors(pid, sample_s=sample_s))


def log_who_asked(what: str, pid: int, request: Request) -> None:
    """Log the user behind a request that changes something."""
    peer = request.peer
    if peer is not None:
        log.info(f"api.{what}", pid=pid, by_user=peer.user, by_uid=peer.uid, by_pid=peer.pid)
