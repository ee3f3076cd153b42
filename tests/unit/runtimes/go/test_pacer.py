"""gcController, laid out as Go does it, in this process' own memory."""

from __future__ import annotations

import pytest

from bpfleakd.runtimes.go.pacer import Pacing, find_pacer

from .memory_image import Arena, own_memory

NO_LIMIT = (1 << 63) - 1


def controller(percent: int, limit: int | None, minimum: int | None = None) -> list[int]:
    """Its first words; heapMinimum as setGCPercent computes it."""
    computed = ((4 << 20) * (percent % (1 << 64))) % (1 << 64) // 100
    return [
        percent & 0xFFFFFFFF,
        *([] if limit is None else [limit]),
        computed if minimum is None else minimum,
    ]


@pytest.mark.parametrize(
    ("percent", "limit", "pacing"),
    [
        (100, NO_LIMIT, Pacing(100, None)),
        (-1, NO_LIMIT, Pacing(None, None)),
        (-1, 1 << 30, Pacing(None, 1 << 30)),
        (0, 0, Pacing(0, 0)),
        (2_000_000_000, NO_LIMIT, Pacing(2_000_000_000, None)),
        (50, None, Pacing(50, None)),
        (-1, None, Pacing(None, None)),
    ],
)
def test_the_right_one_is_found(percent: int, limit: int | None, pacing: Pacing) -> None:
    """Among other variables, and before Go 1.19 without a limit."""
    arena = Arena()
    wrong = arena.words([0x80000000, 7, 0, 0])
    right = arena.words(controller(percent, limit))
    with own_memory() as memory:
        pacer = find_pacer(memory, [wrong, 0, 12345, right], has_limit=limit is not None)
        assert pacer is not None
        assert pacer.read() == pacing


@pytest.mark.parametrize(
    "words", [controller(100, NO_LIMIT, 5), controller(-2, NO_LIMIT), controller(100, 1 << 63), [0, 0, 1]]
)
def test_what_makes_no_sense_is_none(words: list[int]) -> None:
    """Any memory may be there."""
    arena = Arena()
    with own_memory() as memory:
        assert find_pacer(memory, [arena.words(words)], has_limit=True) is None
