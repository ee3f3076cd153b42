"""Groups by several fields: together in the order, and the sums right even where two groups are mixed."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.table import mixed_key
from bpfleakd.table.mixed_key import order_by_group, starts_of_groups

FIELDS = ("kind", "stack_id")
RECORD = np.dtype([("kind", "u4"), ("stack_id", "u8"), ("size", "u8")])


@pytest.fixture
def records() -> np.ndarray:
    random = np.random.default_rng(23)
    records = np.zeros(5_000, RECORD)
    records["kind"] = random.integers(0, 3, 5_000)
    records["stack_id"] = random.choice(np.array([1, 2, 3, 1 << 63, (1 << 64) - 1], np.uint64), 5_000)
    records["size"] = random.integers(0, 100, 5_000)
    return records


def sums(records: np.ndarray) -> dict[tuple[int, int], int]:
    """By group, from all the pieces that there are of it."""
    records = records[order_by_group(records, FIELDS)]
    starts = starts_of_groups(records, FIELDS)
    found: dict[tuple[int, int], int] = {}
    totals = np.add.reduceat(records["size"], starts).tolist()
    for group, size in zip(records[starts][list(FIELDS)].tolist(), totals, strict=True):
        found[group] = found.get(group, 0) + size
    return found


def test_each_group_is_in_one_piece(records: np.ndarray) -> None:
    """As many starts as there are groups."""
    ordered = records[order_by_group(records, FIELDS)]
    assert len(starts_of_groups(ordered, FIELDS)) == len(set(records[list(FIELDS)].tolist())) == 15


def test_groups_that_are_mixed(records: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """If all have the same number the sums are the same."""
    expected: dict[tuple[int, int], int] = {}
    for kind, stack_id, size in records.tolist():
        expected[kind, stack_id] = expected.get((kind, stack_id), 0) + size
    assert sums(records) == expected
    monkeypatch.setattr(mixed_key, "order_by_group", lambda rows, _fields: np.arange(len(rows)))
    monkeypatch.setitem(globals(), "order_by_group", mixed_key.order_by_group)
    assert sums(records) == expected


def test_nothing() -> None:
    """No records, no groups."""
    nothing = np.zeros(0, RECORD)
    assert len(order_by_group(nothing, FIELDS)) == len(starts_of_groups(nothing, FIELDS)) == 0
