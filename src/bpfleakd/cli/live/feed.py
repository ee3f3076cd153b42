"""Requests the daemon's answers in a separate thread, so keys work while the daemon is busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.api.client import DaemonClient
from bpfleakd.errors import BpfleakdError
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.history import StoredHistory
from bpfleakd.model.process import ProcessRow
from bpfleakd.model.report import LeakReport, SortKey
from bpfleakd.model.watching import WatchedProcess

# Its bins are some seconds long.
_HISTORY_EVERY_S = 10.0


class Question(Struct, frozen=True):
    """What the screen needs: processes (no `pid`), a report or a grouped one, and the course of a call site.

    `course_of` is the fingerprint of that, "" for none; `limit` is the number of rows, None for all;
    `suppress`: without suppressed call sites.
    """

    pid: int | None
    sort: SortKey = SortKey.VERDICT
    group: GroupKey = GroupKey.SITE
    limit: int | None = None
    course_of: str = ""
    suppress: bool = True


class Answer(Struct, frozen=True):
    """The daemon's answer to `question`, or the error."""

    question: Question
    processes: tuple[ProcessRow, ...] = ()
    watched: tuple[WatchedProcess, ...] = ()
    report: LeakReport | None = None
    groups: GroupedReport | None = None
    history: StoredHistory | None = None
    error: Exception | None = None


class Feed:
    """Sends the latest question again and again, and notifies `wake` of each answer."""

    def __init__(self, client: DaemonClient, interval_s: float, wake: Callable[[], None]) -> None:
        self._client = client
        self._interval_s = interval_s
        self._wake = wake
        self._changed = threading.Condition()
        self._question: Question | None = None
        self._paused = False
        self._ended = False
        self._answer: Answer | None = None
        self._history: StoredHistory | None = None
        self._history_of: tuple[int | None, str, float] = (None, "", 0.0)

    def __enter__(self) -> Feed:
        # A daemon thread: quitting does not wait for an answer.
        threading.Thread(target=self._run, name="feed", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()

    def ask(self, question: Question, *, paused: bool) -> None:
        """Switch to another question at once; `paused`: send it only once."""
        with self._changed:
            if (question, paused) != (self._question, self._paused):
                self._question, self._paused = question, paused
                self._changed.notify()

    def answer(self) -> Answer | None:
        """Return the latest answer; None before the first."""
        with self._changed:
            return self._answer

    def _run(self) -> None:
        asked: Question | None = None
        while True:
            with self._changed:
                if not self._ended and (self._question is None or self._question == asked):
                    self._changed.wait(None if self._paused or asked is None else self._interval_s)
                if self._ended:
                    return
                question = self._question
                if question is None or (self._paused and question == asked):
                    continue
            asked = question
            answer = self._answer_to(question)
            with self._changed:
                self._answer = answer
            self._wake()

    def _answer_to(self, question: Question) -> Answer:
        try:
            if question.pid is None:
                return Answer(question, self._client.processes(), self._client.watched())
            sort, by, limit = question.sort, question.group, question.limit
            if by is not GroupKey.SITE:
                groups = self._client.groups(
                    question.pid, by=by, limit=limit, sort=sort, suppress=question.suppress
                )
                return Answer(question, groups=groups)
            report = self._client.report(question.pid, limit=limit, sort=sort, suppress=question.suppress)
            answer = Answer(question, report=report)
            if not question.course_of:
                return answer
            return replace(answer, history=self._course_now(question.pid, question.course_of))
        except Exception as error:  # Raised later, where the terminal can be restored first.
            return Answer(question, error=error)

    def _course_now(self, pid: int, site: str) -> StoredHistory | None:
        """The history of a call site, possibly some seconds old; None if it is unavailable."""
        of_pid, of_site, read_s = self._history_of
        if (of_pid, of_site) != (pid, site) or time.monotonic() - read_s >= _HISTORY_EVERY_S:
            try:
                self._history = self._client.course(pid, site)
            except BpfleakdError:
                self._history = None  # of a process that ended there is a report, but none
            self._history_of = (pid, site, time.monotonic())
        return self._history
