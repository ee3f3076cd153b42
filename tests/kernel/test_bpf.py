"""The kernel's maps by their system call, many entries at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from bpfleakd.kernel import bpf

KEY, VALUE = np.dtype("u8"), np.dtype("u4")
COUNT = 5_000


@pytest.fixture
def filled() -> Iterator[int]:
    """A hash map of 0 to COUNT - 1, each with its double."""
    fd = bpf.map_create(bpf.MapType.HASH, KEY.itemsize, VALUE.itemsize, COUNT, bpf.MAP_FLAG_NO_PREALLOC, "t")
    for number in range(COUNT):
        bpf.map_update(fd, number.to_bytes(8, "little"), bpf.u32(2 * number))
    yield fd
    os.close(fd)


def content(fd: int, batch_entries: int = 64) -> dict[int, int]:
    found: dict[int, int] = {}
    for keys, values in bpf.map_batches(fd, KEY, VALUE, batch_entries):
        assert not found.keys() & set(keys.tolist())
        found.update(zip(keys.tolist(), values.tolist(), strict=True))
    return found


@pytest.mark.parametrize("batch_entries", [1, 64, COUNT, 10 * COUNT])
def test_all_is_read_once(filled: int, batch_entries: int) -> None:
    """However many fit into a batch, also if a bucket does not."""
    assert content(filled, batch_entries) == {number: 2 * number for number in range(COUNT)}


def test_many_are_removed_at_once(filled: int) -> None:
    """Those that are not there do not keep the others: first, last, several in a row, repeated."""
    absent = [COUNT + 1, COUNT + 2]
    odd = list(range(1, COUNT, 2))
    wanted = [*absent, *odd[:100], odd[0], *absent, *odd[100:], *absent]
    bpf.map_delete_many(filled, np.array(wanted, KEY))
    assert content(filled).keys() == set(range(0, COUNT, 2))
    bpf.map_delete_many(filled, np.arange(COUNT, dtype=KEY)[::2])
    assert content(filled) == {}
    bpf.map_delete_many(filled, np.empty(0, KEY))


def test_what_is_no_map(tmp_path) -> None:
    """An error of the kernel is one here."""
    with open(tmp_path / "file", "w") as file, pytest.raises(OSError, match="Invalid argument"):
        bpf.map_delete_many(file.fileno(), np.zeros(1, KEY))
