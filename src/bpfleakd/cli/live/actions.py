"""Actions of keys on a process: attach, detach, scan, count types, save a flame graph.

Each runs in a thread, one at a time, so the screen stays responsive; the session fetches the result.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from rich.console import Console, RenderableType
from rich.text import Text

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.live.state import Action
from bpfleakd.cli.output_file import write_output
from bpfleakd.cli.render.words import attached_line, detached_line
from bpfleakd.errors import BpfleakdError
from bpfleakd.export.stack_values import StackValue

_OLDER_THAN_S = 60.0
_STOP_LIMIT_S = 0.2
_UNDER_WAY = {
    Action.ATTACH: "attaching to {} …",
    Action.DETACH: "detaching from {} …",
    Action.SCAN: "scanning {} for lost blocks …",
    Action.TYPES: "counting the objects of {} …",
    Action.EXPORT: "saving a flame graph of {} …",
}


class Outcome(Struct, frozen=True):
    """A line for the top of the screen, and lines to read, if there are any."""

    note: str
    lines: tuple[Text, ...] = ()


def under_way(action: Action, pid: int) -> str:
    """The running action, in words."""
    return _UNDER_WAY[action].format(pid)


class Actions:
    """Runs one action at a time, and notifies `wake` when it has ended."""

    def __init__(self, client: DaemonClient, wake: Callable[[], None]) -> None:
        self._client = client
        self._wake = wake
        self._lock = threading.Lock()
        self._running = False
        self._outcome: Outcome | None = None

    def start(self, action: Action, pid: int, width: int) -> str:
        """Start an action, unless another is running; returns the running one, in words."""
        with self._lock:
            if self._running:
                return "wait: another action is running"
            self._running = True
        arguments = action, pid, width
        threading.Thread(target=self._run, args=arguments, name="action", daemon=True).start()
        return under_way(action, pid)

    def outcome(self) -> Outcome | None:
        """Return the outcome of the last action, once."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return outcome

    def _run(self, action: Action, pid: int, width: int) -> None:
        try:
            outcome = self._carry_out(action, pid, width)
        except BpfleakdError as error:
            outcome = Outcome(str(error))
        with self._lock:
            self._outcome = outcome
            self._running = False
        self._wake()

    def _carry_out(self, action: Action, pid: int, width: int) -> Outcome:
        match action:
            case Action.ATTACH:
                return Outcome(attached_line(self._client.attach(pid)))
            case Action.DETACH:
                return Outcome(detached_line(self._client.detach(pid)))
            case Action.SCAN:
                from bpfleakd.cli.render.scan import scan_view

                scan = self._client.scan(
                    pid, older_than_s=_OLDER_THAN_S, stop=True, stop_limit_s=_STOP_LIMIT_S, limit=0
                )
                return Outcome("", _lines(scan_view(scan, width=width), width))
            case Action.TYPES:
                from bpfleakd.cli.render.types import types_view

                return Outcome("", _lines(types_view(self._client.types(pid), width=width), width))
            case Action.EXPORT:
                return Outcome(f"saved {self._saved(pid)}")

    def _saved(self, pid: int) -> Path:
        from bpfleakd.export.flamegraph import flamegraph_html

        page = flamegraph_html(self._client.profile(pid).report, StackValue.LIVE_BYTES, None)
        path = _unused(Path.cwd() / f"bpfleakd-{pid}.html")
        write_output(str(path), page.encode())
        return path


def _unused(path: Path) -> Path:
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate


def _lines(view: RenderableType, width: int) -> tuple[Text, ...]:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return tuple(Text(line.rstrip()) for line in console.file.getvalue().splitlines())
