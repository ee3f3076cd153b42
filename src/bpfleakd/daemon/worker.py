"""The one thread that uses traced processes and the kernel's maps, so none of it needs locks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from bpfleakd.threads import IdlePriority

P = ParamSpec("P")
R = TypeVar("R")


class Worker:
    """The thread. Calls made while it is busy wait their turn, in order."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tracer")
        self._priority = IdlePriority()
        # Calls that somebody waits for.
        self._wanted = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run `function` in the thread and return what it returns."""
        self._want()
        try:
            return await self._run(partial(function, *args, **kwargs))
        finally:
            self._wanted -= 1

    async def call_idly(self, function: Callable[[], R], limit_s: float) -> R:
        """The same at idle priority: for `limit_s` at most, and only while no call waits."""
        is_late = False

        def hurry() -> None:
            nonlocal is_late
            is_late = True
            self._want()

        timer = asyncio.get_running_loop().call_later(limit_s, hurry)
        try:
            return await self._run(partial(self._idly, function))
        finally:
            timer.cancel()
            self._wanted -= is_late

    async def _run(self, function: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def _want(self) -> None:
        self._wanted += 1
        self._priority.end()

    def _idly(self, function: Callable[[], R]) -> R:
        with self._priority.lowered():
            # Lowered first: whoever begins to wait meanwhile either is seen here, or sees it.
            if self._wanted:
                self._priority.end()
            return function()
