"""The terminal, or its replacement. rich's own decisions apply: NO_COLOR, TERM, COLUMNS."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console

# Wide enough for any line: in a pipe or a file nothing should be cut.
_UNBOUNDED = 10_000


def make_console(
    stream: TextIO | None = None, environ: Mapping[str, str] = os.environ, *, bounded: bool = True
) -> Console:
    """Return a console that shows texts as they are: no markup, no emoji codes, no guessed highlights.

    With `bounded` false, no line is cut; a terminal wraps it.
    """
    stream = stream or sys.stdout
    bounded = bounded and (stream.isatty() or "COLUMNS" in environ)
    return _Console(
        file=stream,
        width=None if bounded else _UNBOUNDED,
        markup=False,
        emoji=False,
        highlight=False,
        _environ=environ,
    )


def fitting_width(console: Console) -> int | None:
    """Return the number of columns for a table; None if there is no limit."""
    return None if console.width == _UNBOUNDED else console.width


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command's one `try`; rich would end the process."""
        raise BrokenPipeError
