"""Ranges of addresses."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.ranges import Range, outside


def addresses(ranges: list[Range]) -> list[int]:
    return [address for start, end in ranges for address in range(start, end)]


def disjoint(edges: list[int]) -> list[Range]:
    return list(pairwise(sorted(edges)))[::2]


@given(
    ranges=st.lists(st.integers(0, 40), unique=True).map(disjoint),
    others=st.lists(st.integers(0, 40), unique=True).map(disjoint),
)
def test_what_is_outside_is_in_no_other_range(ranges: list[Range], others: list[Range]) -> None:
    """In order, each address once, and no empty range."""
    found = list(outside(ranges, others))
    assert addresses(found) == [one for one in addresses(ranges) if one not in addresses(others)]
    assert all(start < end for start, end in found)
