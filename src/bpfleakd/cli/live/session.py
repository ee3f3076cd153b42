"""`bpfleakctl top` on a terminal, from the first screen to the last; always restores the terminal."""

from __future__ import annotations

import contextlib
import select
import signal
import sys

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.live.actions import Actions
from bpfleakd.cli.live.feed import Answer, Feed, Question
from bpfleakd.cli.live.keys import Keyboard
from bpfleakd.cli.live.screen import draw
from bpfleakd.cli.live.state import Page, ShownRows, View, pressed
from bpfleakd.cli.live.wakeups import Wakeups
from bpfleakd.errors import DaemonUnreachable, NoSuchProcess, NotAttached
from bpfleakd.model.groups import GroupKey

# A shell's exit code for a program ended by a signal is this plus the signal's number.
_BY_SIGNAL = 128


def show_live(
    console: Console,
    client: DaemonClient,
    view: View,
    *,
    interval_s: float,
    limit: int | None,
    stacks: bool,
    suppress: bool,
) -> int:
    """Draw until `q` or a signal; return the exit code. Raises what the daemon answers to `view` itself.

    `limit` is the number of rows to request (None: all).
    """
    with Wakeups() as wakeups, Feed(client, interval_s, wakeups.wake) as feed:
        actions = Actions(client, wakeups.wake)
        session = _Session(console, feed, actions, view, _Options(limit, stacks, suppress))
        while True:
            code = session.run(wakeups)
            if code is not None:
                return code
            # The terminal belongs to the shell until SIGCONT.
            if session.is_stopped:
                wakeups.stop()


class _Options(Struct, frozen=True):
    limit: int | None
    stacks: bool
    suppress: bool


class _Session:
    def __init__(self, console: Console, feed: Feed, actions: Actions, view: View, options: _Options) -> None:
        self._console = console
        self._feed = feed
        self._actions = actions
        self._view = view
        self._options = options
        self._result: tuple[Text, ...] = ()
        self._answer: Answer | None = None
        # Since when no daemon answers; None: one does.
        self._lost = False
        self._last_answer: Answer | None = None
        self._rows = ShownRows()
        self._note = ""
        self.is_stopped = False

    def run(self, wakeups: Wakeups) -> int | None:
        """Draw on the screen; return the exit code, or None to leave the screen and take it again."""
        self.is_stopped = False
        with contextlib.ExitStack() as stack:
            # Keys come only from a terminal.
            keyboard = stack.enter_context(Keyboard(sys.stdin.fileno())) if sys.stdin.isatty() else None
            live = stack.enter_context(
                Live(
                    Group(),
                    console=self._console,
                    screen=True,
                    auto_refresh=False,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
            )
            sources: list[Wakeups | Keyboard] = [wakeups, *([keyboard] if keyboard else [])]
            while True:
                self._feed.ask(self._question(), paused=self._view.paused)
                self._take_answer()
                self._take_outcome()
                live.update(self._drawn(), refresh=True)
                ready = select.select(sources, [], [])[0]
                signals = wakeups.signals()
                if signal.SIGINT in signals:
                    raise KeyboardInterrupt
                for number in (signal.SIGTERM, signal.SIGHUP):
                    if number in signals:
                        return _BY_SIGNAL + number
                if signals & {signal.SIGTSTP, signal.SIGCONT}:
                    self.is_stopped = signal.SIGTSTP in signals
                    return None
                if keyboard is not None and keyboard in ready:
                    try:
                        self._press(keyboard.read())
                    except EOFError:
                        return _BY_SIGNAL + signal.SIGHUP
                if self._view.quitting:
                    return 0

    def _question(self) -> Question:
        view = self._view
        everything = view.filter or view.within or view.reverse or view.page is Page.DETAIL
        return Question(
            pid=view.pid,
            sort=view.sort,
            group=view.group if view.page is Page.GROUPS else GroupKey.SITE,
            limit=None if everything else self._options.limit,
            course_of=(view.site or "") if view.page is Page.DETAIL else "",
            suppress=self._options.suppress,
        )

    def _take_answer(self) -> None:
        """Use the latest answer. Raises its error, unless there is a list to return to."""
        answer = self._feed.answer()
        if answer is None or answer is self._last_answer or answer.question.pid != self._view.pid:
            return
        if answer.error is None:
            self._answer, self._last_answer = answer, answer
            if self._lost:
                self._lost, self._note = False, "connected again"
        elif isinstance(answer.error, DaemonUnreachable) and self._last_answer is not None:
            # Request it again at each interval: a restart takes seconds, and keeps the traced processes.
            self._last_answer, self._lost = answer, True
            self._note = f"reconnecting … {answer.error.message}"
        elif self._lost and isinstance(answer.error, NotAttached):
            self._last_answer = answer
            self._note = f"waiting for the new daemon to adopt it … {answer.error.message}"
        elif isinstance(answer.error, NotAttached | NoSuchProcess) and not self._view.alone:
            self._note = f"{answer.error.message}; a attaches"
            self._view = replace(
                View(sort=self._view.sort, group=self._view.group), cursor=str(self._view.pid)
            )
            self._answer = None
            self._feed.ask(self._question(), paused=False)
        else:
            raise answer.error

    def _take_outcome(self) -> None:
        outcome = self._actions.outcome()
        if outcome is None:
            return
        self._note = outcome.note
        if outcome.lines:
            self._result = outcome.lines
            self._view = replace(self._view, reading=True, scroll=0)

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            before = self._view
            self._view = pressed(before, key, self._rows)
            if not self._lost:
                self._note = ""
            if self._view.acting:
                self._note = self._actions.start(*self._view.acting, self._console.size.width)
                self._view = replace(self._view, acting=None)
            if self._view.pid != before.pid:
                self._answer = None
            # The next key acts on the rows that would be on the screen.
            self._drawn()

    def _drawn(self) -> RenderableType:
        size = self._console.size
        drawn = draw(
            self._view,
            self._answer,
            size.width,
            size.height,
            note=self._note,
            stacks=self._options.stacks,
            result=self._result,
            ascii_only=self._console.options.ascii_only,
        )
        self._rows = drawn.shown
        return drawn.renderable
