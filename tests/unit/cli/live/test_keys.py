"""Decoding of the bytes that terminals send into keys."""

from __future__ import annotations

import contextlib
import os
import pty
import termios

import pytest

from bpfleakd.cli.live.keys import Keyboard, KeyDecoder


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOC\x1bOD", ["right", "left"]),
        (b"\x1b[1;5A", ["up"]),
        (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["page-up", "page-down", "home", "end"]),
        (b"\r\n\x7f\x0c", ["enter", "enter", "backspace", "redraw"]),
        ("naïve→".encode(), list("naïve→")),
        (b"\x1b[200~\x1b[<0;3;4Mx", ["x"]),  # a paste, a mouse
        (b"\x01\x1b[99~", []),
    ],
)
def test_keys_have_names(sent, keys):
    """However a terminal is set: in one piece and byte by byte."""
    assert KeyDecoder().decode(sent, final=True) == keys
    decoder = KeyDecoder()
    assert [key for byte in sent for key in decoder.decode(bytes([byte]))] == keys


def test_escape_by_itself_is_a_key_when_nothing_follows():
    """An arrow key begins with the same byte."""
    decoder = KeyDecoder()
    assert decoder.decode(b"\x1b") == []
    assert decoder.is_unfinished
    assert decoder.decode(b"", final=True) == ["escape"]
    assert decoder.decode(b"\x1b\x1b[A", final=True) == ["escape", "up"]


def test_a_terminal_is_as_before_after_an_exception():
    """Its modes: lines, echo."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with contextlib.suppress(ZeroDivisionError), Keyboard(theirs) as keyboard:
        assert termios.tcgetattr(theirs) != before
        os.write(ours, b"\x1b[Bx\x1b")
        assert keyboard.read() == ["down", "x", "escape"]
        raise ZeroDivisionError
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_a_terminal_that_went_away_is_an_end():
    """Nobody is going to press a key."""
    ours, theirs = pty.openpty()
    with Keyboard(theirs) as keyboard:
        os.close(ours)
        with pytest.raises(EOFError):
            keyboard.read()
    os.close(theirs)
