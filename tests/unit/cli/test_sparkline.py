"""Figures over time in one line."""

from __future__ import annotations

from bpfleakd.cli.render.words import sparkline


def test_it_goes_from_nothing_to_the_largest():
    """Evenly over time, also where bins are not."""
    assert sparkline([1, 2, 3, 4], [0, 7, 14, 7], 4) == "▁▅█▅"
    assert sparkline([3, 4], [0, 7], 4) == "▁▁▁█"


def test_a_sparkline_without_values_is_empty_or_flat():
    """No bins, no room, no memory."""
    assert sparkline([], [], 10) == ""
    assert sparkline([1], [5], 0) == ""
    assert sparkline([1, 2], [0, 0], 3) == "▁▁▁"


def test_it_has_a_form_for_terminals_without_blocks():
    """ASCII."""
    assert sparkline([1, 2, 3], [0, 4, 8], 3, ascii_only=True) == "_=#"
