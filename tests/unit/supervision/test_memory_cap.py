"""What the daemon does about its own memory."""

from __future__ import annotations

from bpfleakd.supervision.overhead_guard import MemoryCap, MemoryStep

NOTHING, SHED, RELEASE = MemoryStep.NOTHING, MemoryStep.DROP_CACHES, MemoryStep.RELEASE_LARGEST


def steps(sizes: list[int], cap: MemoryCap | None = None) -> list[tuple[int, MemoryStep]]:
    """(second, step) where something was done, for a size a second and a limit of 100."""
    cap = cap or MemoryCap(100)
    taken = [(second, cap.step(float(second), size)) for second, size in enumerate(sizes)]
    return [pair for pair in taken if pair[1] is not NOTHING]


def test_below_the_limit_nothing_is_done():
    """Not even exactly at the limit."""
    assert steps([100] * 100) == []


def test_caches_go_first_and_that_may_be_enough():
    """Memory is given back a little later."""
    assert steps([50, 120, 120, 110, 90, *[90] * 100]) == [(1, SHED)]


def test_then_the_largest_are_let_go_of_one_by_one():
    """With time in between, for the memory to be given back."""
    assert steps([120] * 17 + [90] * 50) == [(0, SHED), (5, RELEASE), (10, RELEASE), (15, RELEASE)]


def test_later_it_begins_with_the_caches_again():
    """They have filled by then."""
    assert steps([120, *[90] * 70, 120]) == [(0, SHED), (71, SHED)]
    assert steps([120, *[90] * 30, 120]) == [(0, SHED), (31, RELEASE)]
