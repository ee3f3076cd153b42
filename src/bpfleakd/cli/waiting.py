"""A line on the terminal during a long operation: what it is, and for how long. Nothing in a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

# Shorter operations need no line.
_SHOWN_AFTER_S = 0.5


@contextlib.contextmanager
def waiting(words: str, *, after_s: float = _SHOWN_AFTER_S) -> Iterator[None]:
    """Show a line on standard error, if that is a terminal, and remove it at the end of the context."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(words, done, after_s), name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(words: str, done: threading.Event, after_s: float) -> None:
    if done.wait(after_s):
        return
    # rich takes longer to import than most commands take.
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from bpfleakd.cli.render.console import make_console

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=make_console(sys.stderr), transient=True) as progress:
        progress.add_task(words, total=None)
        done.wait()
