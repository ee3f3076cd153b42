"""Figures for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.units import human_bytes, human_duration, human_percent, human_rate


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_023.5, "1.00 KiB"),
        (10_235, "10.0 KiB"),
        (102_348, "99.9 KiB"),
        (102_400, "100 KiB"),
        (1_048_063, "1023 KiB"),
        (1_048_064, "1.00 MiB"),
        (5_000_011, "4.77 MiB"),
        (2**63, "8.00 EiB"),
        (-23_000, "-22.5 KiB"),
    ],
)
def test_bytes_have_three_digits_and_a_binary_unit(count, text):
    """A column of them can be compared by eye."""
    assert human_bytes(count) == text


@given(st.floats(-(2.0**63), 2.0**63))
def test_sizes_and_rates_fit_their_columns(count):
    """Eight characters and a sign; eleven with "/s"."""
    assert len(human_bytes(abs(count))) <= 8
    assert len(human_rate(count)) <= 11


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0.0, "0 B/s"),
        (0.4, "0 B/s"),
        (-0.4, "0 B/s"),
        (1.0, "+1 B/s"),
        (-1e6, "-977 KiB/s"),
        (2e6, "+1.91 MiB/s"),
    ],
)
def test_rates_have_a_sign(rate, text):
    """Growing and shrinking must not be mistaken for each other."""
    assert human_rate(rate) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (193, "3m13s"),
        (3_599, "59m59s"),
        (3_600, "1h00m"),
        (86_399, "23h59m"),
        (86_400, "1d00h"),
        (31_536_000, "365d00h"),
    ],
)
def test_durations_have_two_parts(seconds, text):
    """The larger unit and the next one."""
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    ("percent", "text"),
    [(0.0, ""), (0.04, ""), (0.25, "0.2%"), (9.94, "9.9%"), (9.96, "10%"), (250.0, "250%")],
)
def test_percent(percent, text):
    """With one decimal if it is significant."""
    assert human_percent(percent) == text
