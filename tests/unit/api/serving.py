"""A real server on a real socket, in a thread with its own event loop, and a service that fails by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from bpfleakd.api.connection import Deadlines
from bpfleakd.api.server import ApiServer
from bpfleakd.api.service import Service

METHODS = frozenset(name for name in vars(Service) if not name.startswith("_"))


class FakeService:
    """Gives prepared answers, and fails the test for every other call."""

    def __init__(self, **answers: Any) -> None:
        assert set(answers) <= set(METHODS)
        self.answers = answers
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method not in METHODS:
            raise AttributeError(method)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((method, *args, *kwargs.values()))
            if method not in self.answers:
                raise AssertionError(f"unexpected call of {method}{args}")
            answer = self.answers[method]
            if callable(answer):
                answer = answer(*args, **kwargs)
            if inspect.isawaitable(answer):
                answer = await answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def exposition(accept: str) -> tuple[bytes, str]:
    return f"accepted {accept}\n".encode(), "text/plain; version=0.0.4; charset=utf-8"


@contextlib.contextmanager
def running(
    service: FakeService,
    socket_path: Path,
    *,
    group: str | None = None,
    tcp: bool | str = False,
    metrics: Any = exposition,
    details: bool = False,
    deadlines: Deadlines | None = None,
) -> Iterator[ApiServer]:
    """Serve on `socket_path`, and on a free port of `tcp`, or of localhost if that is True."""
    server = ApiServer(
        service,
        metrics,
        socket_path=socket_path,
        socket_group=group,
        tcp=("127.0.0.1" if tcp is True else tcp, 0) if tcp else None,
        details=details,
        deadlines=deadlines,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
