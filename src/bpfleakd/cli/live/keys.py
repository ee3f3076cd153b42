"""Keys of a terminal, by name.

A key is a character, or one of the names below. What a terminal sends for keys without a character are the
escape sequences of xterm (ctlseqs, "PC-Style Function Keys"), which every terminal in use sends, too.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import select
import termios
import tty
from typing import Any

UP, DOWN, LEFT, RIGHT = "up", "down", "left", "right"
PAGE_UP, PAGE_DOWN, HOME, END = "page-up", "page-down", "home", "end"
ENTER, ESCAPE, BACKSPACE, REDRAW = "enter", "escape", "backspace", "redraw"

_FINAL = {"A": UP, "B": DOWN, "C": RIGHT, "D": LEFT, "H": HOME, "F": END}
_NUMBERED = {"1": HOME, "4": END, "5": PAGE_UP, "6": PAGE_DOWN, "7": HOME, "8": END}
_CONTROLS = {"\r": ENTER, "\n": ENTER, "\x7f": BACKSPACE, "\b": BACKSPACE, "\x0c": REDRAW}

_SEQUENCE = re.compile(r"\x1b(?:O(?P<keypad>[A-Z])|\[(?P<numbers>[0-9;?<]*)(?P<final>[@-~]))")
_UNFINISHED = re.compile(r"\x1b(?:O|\[[0-9;?<]*)?\Z")

# Time limit for the rest of a sequence; without it, the key was Escape itself.
_REST_S = 0.05
_READ_BYTES = 1024


class KeyDecoder:
    """Bytes to keys, for bytes that come in any pieces."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    @property
    def is_unfinished(self) -> bool:
        """Whether the last sequence is unfinished."""
        return bool(self._rest)

    def decode(self, data: bytes, *, final: bool = False) -> list[str]:
        """Return the keys that are complete; with `final`, an escape character that stands alone is one."""
        text = self._rest + self._utf8.decode(data)
        self._rest = ""
        keys = []
        while text:
            if not final and _UNFINISHED.match(text):
                self._rest = text
                break
            key, length = _first_key(text)
            keys += [key] if key else []
            text = text[length:]
        return keys


def _first_key(text: str) -> tuple[str | None, int]:
    """Return the key (None for one without a meaning here) and how many characters it has."""
    if found := _SEQUENCE.match(text):
        if found["keypad"] or found["final"] != "~":
            return _FINAL.get(found["keypad"] or found["final"]), found.end()
        return _NUMBERED.get(found["numbers"].partition(";")[0]), found.end()
    character = text[0]
    if character == "\x1b":
        return ESCAPE, 1
    if character in _CONTROLS:
        return _CONTROLS[character], 1
    return (character if character.isprintable() else None), 1


class Keyboard:
    """A terminal that delivers each key at once and does not echo it, until the context ends.

    Ctrl-C and Ctrl-Z remain signals.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._decoder = KeyDecoder()
        self._before: list[Any] = []

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor, termios.TCSADRAIN)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._descriptor

    def read(self) -> list[str]:
        """Return the keys that were pressed. Raises EOFError if the terminal is gone."""
        keys = self._decoder.decode(self._bytes())
        while self._decoder.is_unfinished:
            if not select.select([self._descriptor], [], [], _REST_S)[0]:
                return keys + self._decoder.decode(b"", final=True)
            keys += self._decoder.decode(self._bytes())
        return keys

    def _bytes(self) -> bytes:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except OSError as error:  # EIO: it was hung up
            raise EOFError from error
        if not data:
            raise EOFError
        return data
