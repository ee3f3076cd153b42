"""Who keeps blocks: the innermost caller that no stack shares which gives back what it gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.analysis.callers import GivenBack, gives_back, keeper
from bpfleakd.model.site import SiteCounters
from bpfleakd.model.stack import Frame, FrameKind

MALLOC, WRAPPER, GUILTY, INNOCENT, MAIN = 0x10, 0x20, 0x31, 0x32, 0x40
FUNCTIONS = {WRAPPER: "checked_malloc", GUILTY: "guilty", INNOCENT: "innocent", MAIN: "main"}


def frame(address: int, *, inlined: bool = False, function: str | None = None) -> Frame:
    name = function or FUNCTIONS.get(address, f"f{address:x}")
    module = "libc.so.6" if address == MALLOC else "shop"
    return Frame("malloc" if address == MALLOC else name, module, 1, None, address, FrameKind.NATIVE, inlined)


def kept_by(stack: list[int], *given_back: list[int]) -> str | None:
    found = keeper([frame(address) for address in stack], GivenBack(given_back))
    return found.function if found else None


def test_without_others_it_is_who_is_blamed() -> None:
    """The innermost frame that is no tool of its caller."""
    assert kept_by([MALLOC, WRAPPER, GUILTY, MAIN]) == "checked_malloc"
    assert kept_by([]) is None


def test_a_wrapper_that_others_use_is_not_to_blame() -> None:
    """Through the same call somebody gets blocks and gives them back."""
    assert kept_by([MALLOC, WRAPPER, GUILTY, MAIN], [MALLOC, WRAPPER, INNOCENT, MAIN]) == "guilty"


def test_another_call_in_the_same_wrapper_says_nothing() -> None:
    """It is another line of it, which may have another purpose."""
    assert kept_by([MALLOC, WRAPPER, GUILTY, MAIN], [MALLOC, WRAPPER + 1, INNOCENT]) == "checked_malloc"


def test_wrappers_of_wrappers() -> None:
    """As far out as there is somebody who gives back."""
    stack = [MALLOC, WRAPPER, 0x21, 0x22, GUILTY, MAIN]
    assert kept_by(stack, [MALLOC, WRAPPER, 0x25], [MALLOC, WRAPPER, 0x21, 0x22, INNOCENT]) == "guilty"
    assert kept_by(stack, [MALLOC, WRAPPER, 0x21, 0x25]) == "f22"


def test_two_calls_of_one_function() -> None:
    """One line of main keeps, another gives back: it is main, at the line of this stack."""
    stack = [frame(MALLOC), frame(WRAPPER), frame(MAIN), frame(0x50)]
    found = keeper(stack, GivenBack([[MALLOC, WRAPPER, MAIN + 5, 0x50]]))
    assert found == frame(MAIN)


def test_inlined_functions_share_an_address() -> None:
    """They are one step outwards together with the frame that holds them."""
    inlined = frame(WRAPPER, inlined=True, function="inlined_wrapper")
    stack = [frame(MALLOC), inlined, frame(WRAPPER), frame(GUILTY), frame(MAIN)]
    assert keeper(stack, GivenBack([])) == inlined
    assert keeper(stack, GivenBack([[MALLOC, WRAPPER, INNOCENT]])) == frame(GUILTY)


def test_a_stack_that_is_all_shared() -> None:
    """If it is the beginning of one that gives back (it was cut short), there is nobody further out."""
    assert kept_by([MALLOC, WRAPPER], [MALLOC, WRAPPER, INNOCENT]) == "checked_malloc"


@pytest.mark.parametrize(
    ("live", "allocated", "expected"), [(0, 23, True), (2, 23, True), (3, 23, False), (0, 0, False)]
)
def test_who_gives_back(live: int, allocated: int, expected: bool) -> None:
    """Nine blocks of ten are freed; who never got any gives none back."""
    assert gives_back(SiteCounters(live, live, allocated, allocated)) is expected


_STACKS = st.lists(st.integers(1, 3), max_size=6)


@given(stack=_STACKS, others=st.lists(_STACKS, max_size=12))
def test_the_longest_common_beginning(stack: list[int], others: list[list[int]]) -> None:
    """As if each were compared with each."""

    def common(other: list[int]) -> int:
        pairs = zip(stack, other, strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(stack), len(other)))

    assert GivenBack(others).shared(stack) == max(map(common, others), default=0)
