"""Blocks that objects own: garbage in cycles, and containers with a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.runtimes.runtime import Retained
from bpfleakd.tracing.object_memory import ObjectLooks, filling, owned_by_objects, why_unconfirmed
from bpfleakd.tracing.owned_memory import OwnedGrowth

LEAK_AFTER_S = 45.0
# Ten blocks a second in 200 s.
GROWTH = OwnedGrowth(30.0, 230.0, 9 << 20, 2_000)


def container(per_s: float, bound: int | None = None) -> Retained:
    """A container that gains so many values a second."""
    return Retained("str", (), 800, 100, 8 * per_s, "deque of 100", 1, per_s, bound)


def looks(
    *retained: Retained, looked_s: float | None = None, next_s: float = 300.0, known: bool = True
) -> ObjectLooks:
    return ObjectLooks(retained, looked_s, next_s, known)


@pytest.mark.parametrize(
    ("looked_s", "next_s", "is_leak"),
    [
        (None, 300.0, False),
        (100.0, 300.0, False),
        (140.0, 300.0, True),
        # Growth has lasted ten minutes by then.
        (None, 640.0, True),
        (None, math.inf, True),
    ],
)
def test_a_full_collection_confirms_it(looked_s: float | None, next_s: float, is_leak: bool) -> None:
    """One that looked at what was there in the middle of the growth; one that comes late is not awaited."""
    why = why_unconfirmed(GROWTH, looks(looked_s=looked_s, next_s=next_s), LEAK_AFTER_S)
    assert (why is None) is is_leak
    assert is_leak or "garbage in cycles" in str(why)


def test_containers_that_are_not_known_yet() -> None:
    """One with a bound may fill, whatever the collector has looked at; but not for ten minutes."""
    seen = looks(looked_s=200.0, known=False)
    assert "read too rarely" in str(why_unconfirmed(GROWTH, seen, LEAK_AFTER_S))
    assert why_unconfirmed(OwnedGrowth(30.0, 640.0, 9 << 20, 6_000), seen, LEAK_AFTER_S) is None


def test_a_short_growth() -> None:
    """A collection has to be as late as any leak takes."""
    growth = OwnedGrowth(30.0, 80.0, 9 << 20, 500)
    assert why_unconfirmed(growth, looks(looked_s=70.0), LEAK_AFTER_S) is not None
    assert why_unconfirmed(growth, looks(looked_s=75.0), LEAK_AFTER_S) is None


@pytest.mark.parametrize(
    ("retained", "expected"),
    [
        ([container(10)], None),
        # Several blocks for each value.
        ([container(1)], None),
        # These hold something else.
        ([container(0.1)], "garbage"),
        ([container(10, bound=5_000)], "bound of 5,000"),
        # The better fit decides; one without a bound if both are close.
        ([container(10, bound=5_000), container(3)], "bound of 5,000"),
        ([container(3, bound=5_000), container(10)], None),
        ([container(10, bound=5_000), container(10)], None),
        ([container(10, bound=5_000), container(9)], None),
    ],
)
def test_the_container_that_fits(retained: Sequence[Retained], expected: str | None) -> None:
    """One that gains values as fast as the site gains blocks holds them: they are no garbage."""
    why = why_unconfirmed(GROWTH, looks(*retained), LEAK_AFTER_S)
    assert why is None if expected is None else expected in str(why)


@pytest.mark.parametrize(
    ("retained", "is_leak"),
    [
        ([], True),
        ([container(900)], True),
        ([container(900, bound=5_000)], False),
        ([container(900, bound=5_000), container(500)], True),
    ],
)
def test_a_block_that_becomes_larger(retained: Sequence[Retained], is_leak: bool) -> None:
    """It is in use, so it is no garbage; it may be the table of a container with a bound."""
    growth = OwnedGrowth(30.0, 230.0, 9 << 20, 0.0)
    assert (why_unconfirmed(growth, looks(*retained), LEAK_AFTER_S) is None) is is_leak


def test_what_fills() -> None:
    """Most of the values go into containers with a bound."""
    assert filling([]) is None
    assert filling([container(10)]) is None
    assert filling([container(10, bound=500), container(4)]) is None
    words = "it may fill the deque of 100, which has a bound of 500"
    assert filling([container(10, bound=500), container(2)]) == words


MALLOC = Frame("malloc", "libc.so.6", None, None, 0x1000, FrameKind.NATIVE)
JEMALLOC = Frame("malloc", "libjemalloc.so.2", None, None, 0x1000, FrameKind.NATIVE)
OBJECT = Frame("_PyObject_Malloc", "python3.11", None, None, 0x1000, FrameKind.NATIVE)
EXTENSION = Frame("parse", "_parser.so", None, None, 0x1000, FrameKind.NATIVE)
HANDLE = Frame("handle", "shop.py", None, "shop.py:17", 0x2000, FrameKind.INTERPRETED)


@pytest.mark.parametrize(
    ("frames", "is_owned"),
    [
        ([MALLOC, OBJECT, HANDLE], True),
        # Through an extension, which makes an object.
        ([MALLOC, OBJECT, EXTENSION, OBJECT, HANDLE], True),
        ([MALLOC, EXTENSION, OBJECT, HANDLE], False),
        # Of an allocator that is preloaded.
        ([JEMALLOC, OBJECT, HANDLE], True),
        ([MALLOC, OBJECT], False),
        ([MALLOC, HANDLE], False),
        ([], False),
    ],
)
def test_who_allocates(frames: list[Frame], is_owned: bool) -> None:
    """The interpreter, for a Python function."""
    assert owned_by_objects(SiteKey(AllocationKind.HEAP, 1), frames) is is_owned
    assert not owned_by_objects(SiteKey(AllocationKind.PYTHON, 1), frames)
