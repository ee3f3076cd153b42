"""Objects of more than 512 bytes, among memory that looks like that."""

from __future__ import annotations

import numpy as np

from bpfleakd.runtimes.cpython.large_objects import cover_others


def covering(*objects: tuple[int, int]) -> list[bool]:
    places, sizes = np.array(objects, np.uint64).reshape(-1, 2).T
    return cover_others(places, sizes).tolist()


def test_what_reaches_over_others_is_no_object() -> None:
    """Five megabytes that begin in a table, before a heap of real ones."""
    real = [(0x20_0000 + 0x1000 * number, 0x800) for number in range(10)]
    assert covering((0x10_0000, 5 << 20), *real) == [True, *[False] * 10]


def test_bytes_may_look_like_an_object_inside() -> None:
    """A large one that has something in it stays; so does what lies side by side."""
    assert covering((0x1000, 1 << 20), (0x5000, 0x900), (0x9000, 0x900)) == [False] * 3
    assert covering(*((0x1000 * number, 0x1000) for number in range(1, 50))) == [False] * 49
    assert covering() == []
