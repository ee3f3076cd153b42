"""Types of command-line arguments."""

from __future__ import annotations

import argparse
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.cli.arguments import duration_s, site, whole_number_between


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("60", 60), ("0", 0), ("1.5h", 5_400), ("1h30m", 5_400), ("2d", 172_800), ("0.5s", 0.5)],
)
def test_durations(text, seconds):
    """With units, without one, or with several."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "1w", "-1s", "1 h", "1h 30m", "1e3", "nan", "１s", "1hs", "9" * 40 + "s"]
)
def test_texts_that_are_not_durations(text):
    """A misspelt one is not taken for another."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a duration \(for example 60s"):
        duration_s(text)


@given(st.text(max_size=40))
def test_any_text(text):
    """A number that is not negative, or an error."""
    with contextlib.suppress(argparse.ArgumentTypeError):
        assert duration_s(text) >= 0


@pytest.mark.parametrize(
    "text", ["", "5d41402abc4b2a7", "5D41402ABC4B2A76", "5d41402abc4b2a76\n", "leak_here"]
)
def test_texts_that_are_not_sites(text):
    """Fingerprints have 16 hexadecimal digits, as they are printed."""
    with pytest.raises(argparse.ArgumentTypeError):
        site(text)
    assert site("5d41402abc4b2a76") == "5d41402abc4b2a76"


@pytest.mark.parametrize("text", ["0", "101", "x", "", "1.5", "-1"])
def test_numbers_have_limits(text):
    """Both ends belong to the range."""
    number = whole_number_between(1, 100)
    assert [number("1"), number("100")] == [1, 100]
    with pytest.raises(argparse.ArgumentTypeError, match="from 1 to 100"):
        number(text)
