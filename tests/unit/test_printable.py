"""Names that others chose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.printable import printable, shortened

from .samples import HOSTILE


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_but_visible_characters_comes_out(text):
    """Whatever goes in (lone surrogates, too), the result can be printed and encoded."""
    assert printable(text).isprintable()
    printable(text).encode()


def test_hostile_text_is_shown_as_escapes():
    """Controls, text direction, C1 and undecodable bytes are visible and remain distinct."""
    assert printable(HOSTILE) == r"[red]\x1b]0;owned\x07\x1b[2J\x0ax\u202e\x9b1m\xff\x7f"


@pytest.mark.parametrize("text", ["", "libc.so.6", "naïve", "漢字", "std::map<int, char>::find(int&&)"])
def test_ordinary_names_stay_as_they_are(text):
    """Letters of any script, punctuation and spaces are not touched."""
    assert printable(text) == text


@given(st.text(), st.integers(1, 50), st.booleans())
def test_shortened_text_fits_and_keeps_its_end_or_start(text, max_chars, keep_end):
    """Text that fits is unchanged; longer text has the requested length, or less for a whole directory."""
    short = shortened(text, max_chars, keep_end=keep_end)
    if len(text) <= max_chars:
        assert short == text
    elif keep_end:
        assert max_chars / 2 < len(short) <= max_chars
        assert short.startswith("…")
        assert text.endswith(short[1:])
    else:
        assert short == text[: max_chars - 1] + "…"
