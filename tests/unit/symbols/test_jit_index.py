"""Ranges of which the newest wins, against the obvious slow algorithm."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.symbols.jit_index import JitIndex

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=40)


def newest_around(entries: list[tuple[int, int, int]], address: int) -> tuple[int, int, int] | None:
    around = [(start, size, order) for start, size, order in entries if start <= address < start + size]
    return around[-1] if around else None


@given(ranges=RANGES, cut=st.integers(0, 40))
def test_newest_range_around_an_address(ranges: list[tuple[int, int]], cut: int) -> None:
    """Whatever overlaps whatever, in one piece or added later: the last one around an address is found."""
    entries = [(start, size, order) for order, (start, size) in enumerate(ranges)]
    index = JitIndex(1_000)
    empty = index.add(entries[:cut])
    index.find(0)
    empty += index.add(entries[cut:])

    assert empty == sum(size == 0 for _, size, _ in entries)
    # A range replaced by one with the same start is gone, even if it was longer.
    latest = {start: (start, size, order) for start, size, order in entries if size}
    kept = sorted(latest.values(), key=lambda entry: entry[2])
    for address in range(85):
        assert index.find(address) == newest_around(kept, address)


def test_oldest_ranges_go_when_there_are_too_many() -> None:
    """Above the limit the newest ones stay, and the others are counted."""
    index = JitIndex(23)
    index.add([(start * 16, 16, start) for start in range(100)])
    assert len(index) == 23
    assert index.dropped == 77
    assert index.find(99 * 16) == (99 * 16, 16, 99)
    assert index.find(0) is None


def test_range_at_the_end_of_the_address_space() -> None:
    """A range that would wrap around is left out."""
    index = JitIndex(10)
    assert index.add([((1 << 64) - 16, 16, 0), ((1 << 64) - 32, 16, 1)]) == 1
    assert index.find((1 << 64) - 17) == ((1 << 64) - 32, 16, 1)
    assert index.find((1 << 64) - 1) is None
