"""Free chunks over pages that are there or not."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.analysis.free_memory import FreeMemory, free_memory

PAGE = 4096
START = 0x5555_0000_0000


def chunks(*ranges: tuple[int, int]) -> np.ndarray:
    return np.array([(START + at, size) for at, size in ranges], np.uint64).reshape(-1, 2)


@pytest.mark.parametrize(
    ("present", "free", "expected"),
    [
        ([True] * 4, [], FreeMemory(0, 0)),
        # A free chunk within a page is held by its neighbours.
        ([True] * 4, [(100, 500)], FreeMemory(500, 0)),
        # Its whole pages can go; its head and its tail stay.
        ([True] * 4, [(PAGE - 64, 2 * PAGE + 128)], FreeMemory(2 * PAGE + 128, 2 * PAGE)),
        # The links at its beginning are in the first page.
        ([True] * 4, [(PAGE, 2 * PAGE)], FreeMemory(2 * PAGE, PAGE)),
        # Memory that is not resident costs nothing.
        ([True, False, False, True], [(64, 4 * PAGE - 64)], FreeMemory(2 * PAGE - 64, PAGE)),
        # A chunk beyond the counted pages.
        ([True], [(PAGE, PAGE)], FreeMemory(0, 0)),
    ],
)
def test_free_bytes(present, free, expected):
    found = free_memory(START, np.array(present), chunks(*free))

    assert found == expected
    assert found.pinned_bytes == expected.resident_bytes - expected.whole_pages_bytes
