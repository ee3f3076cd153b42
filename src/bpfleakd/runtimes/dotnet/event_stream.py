"""A session that stays open. A helper reads it, and each tick processes the helper's answers.

Rules:
- A separate thread opens it; reading never waits.
- A stream that ends is started again after a pause, but not after several failures; one that cannot be read
  is not started again. Earlier failures are forgotten when a stream has worked for some time.
- To end it, closing is enough: the helper ends, and the runtime ends the session at its next event.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Generic, TypeVar

from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError, Session
from bpfleakd.sandbox.answer_stream import AnswerStream
from bpfleakd.sandbox.channel import HelperFailed, JobFailed
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.threads import begin_thread

T = TypeVar("T")

_NS_PER_S = 1_000_000_000
_AGAIN_NS = 30 * _NS_PER_S
_WENT_WELL_NS = 600 * _NS_PER_S
_FAILURES_MAX = 3
# Reading a hundred collections per second takes 0.5 % of a processor.
_CPU_S = 20_000


class EventStream(Generic[T]):
    """The answers of a job about the events of one session.

    `start` opens the session and raises DiagnosticsError; `failure` says why there is none. It was opened
    first at `open_since_ns`.
    """

    def __init__(
        self,
        helpers: Helpers,
        job: str,
        answer_type: type[T],
        start: Callable[[], Session],
        not_before_ns: int,
    ) -> None:
        self.failure: str | None = None
        self.open_since_ns: int | None = None
        self._helpers = helpers
        self._job, self._type = job, answer_type
        self._start = start
        self._due_ns = not_before_ns
        self._failures = 0
        self._opened_ns = 0
        self._is_opening = False
        self._is_closed = False
        self._answers: AnswerStream[T] | None = None
        self._opened: queue.SimpleQueue[AnswerStream[T] | DiagnosticsError] = queue.SimpleQueue()

    def read(self, now_ns: int) -> list[T]:
        """The answers since the last call; opens the session when it is due."""
        self._take_opened(now_ns)
        if self._answers is None:
            self._open_if_due(now_ns)
            return []
        try:
            return self._answers.read()
        except JobFailed as error:
            self._failures = _FAILURES_MAX
            self._fail(f"its event stream cannot be read: {error}", now_ns)
        except HelperFailed:
            if now_ns - self._opened_ns >= _WENT_WELL_NS:
                self._failures = 0
            self._fail("its event stream has ended", now_ns)
        return []

    def close(self) -> None:
        """End the session."""
        self._is_closed = True
        self._drop()
        self._close_opened()

    def _open_if_due(self, now_ns: int) -> None:
        wanted = not self._is_closed and not self._is_opening and self._failures < _FAILURES_MAX
        if wanted and now_ns >= self._due_ns:
            self._is_opening = True
            begin_thread("dotnet-events", self._open)

    def _open(self) -> None:
        try:
            self._opened.put(self._followed())
        except DiagnosticsError as error:
            self._opened.put(error)
        if self._is_closed:
            self._close_opened()

    def _followed(self) -> AnswerStream[T]:
        try:
            self._helpers.prepare()
            session = self._start()
            try:
                files = [session.fileno()]
                return self._helpers.follow(self._job, None, files, self._type, cpu_s=_CPU_S)
            finally:
                session.close()
        except HelperFailed as error:
            raise DiagnosticsError(f"there is no helper to read its event stream: {error}") from error

    def _close_opened(self) -> None:
        while True:
            try:
                opened = self._opened.get_nowait()
            except queue.Empty:
                return
            if isinstance(opened, AnswerStream):
                opened.close()

    def _take_opened(self, now_ns: int) -> None:
        try:
            opened = self._opened.get_nowait()
        except queue.Empty:
            return
        self._is_opening = False
        if isinstance(opened, AnswerStream):
            self._answers, self.failure = opened, None
            self._opened_ns = now_ns
            self.open_since_ns = self.open_since_ns or now_ns
        else:
            self._fail(str(opened), now_ns)

    def _fail(self, failure: str, now_ns: int) -> None:
        self._drop()
        self.failure = failure
        self._failures += 1
        self._due_ns = now_ns + _AGAIN_NS

    def _drop(self) -> None:
        if self._answers is not None:
            self._answers.close()
            self._answers = None
