"""The function that keeps blocks: the innermost caller not shared with stacks that free theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.analysis.callers import Callers, ChargeRules, GivenBack, charged_frame, gives_back
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import SiteCounters

MALLOC, WRAPPER, GUILTY, INNOCENT, MAIN = 0x10, 0x20, 0x31, 0x32, 0x40
FUNCTIONS = {WRAPPER: "make_room", GUILTY: "guilty", INNOCENT: "innocent", MAIN: "main"}


def frame(address: int, *, inlined: bool = False, function: str | None = None) -> Frame:
    name = function or FUNCTIONS.get(address, f"f{address:x}")
    module = "libc.so.6" if address == MALLOC else "shop"
    return Frame("malloc" if address == MALLOC else name, module, 1, None, address, FrameKind.NATIVE, inlined)


def giving_back(*stacks: list[int]) -> Callers:
    return Callers((stack, 23, True) for stack in stacks)


def kept_by(stack: list[int], *given_back: list[int]) -> str | None:
    found = charged_frame([frame(address) for address in stack], giving_back(*given_back))
    return found.function if found else None


def test_without_others_it_is_who_is_blamed() -> None:
    """The innermost frame that is not a tool of its caller."""
    assert kept_by([MALLOC, WRAPPER, GUILTY, MAIN]) == "make_room"
    assert kept_by([]) is None


def test_a_wrapper_that_others_use_is_not_to_blame() -> None:
    """Other callers get blocks by the same call and free them."""
    assert kept_by([MALLOC, WRAPPER, GUILTY, MAIN], [MALLOC, WRAPPER, INNOCENT, MAIN]) == "guilty"


def test_another_call_in_the_same_wrapper_says_nothing() -> None:
    """It is another line of it, which may have another purpose."""
    assert kept_by([MALLOC, WRAPPER, GUILTY, MAIN], [MALLOC, WRAPPER + 1, INNOCENT]) == "make_room"


def test_wrappers_of_wrappers() -> None:
    """Outwards as long as there are callers that free their blocks."""
    stack = [MALLOC, WRAPPER, 0x21, 0x22, GUILTY, MAIN]
    assert kept_by(stack, [MALLOC, WRAPPER, 0x25], [MALLOC, WRAPPER, 0x21, 0x22, INNOCENT]) == "guilty"
    assert kept_by(stack, [MALLOC, WRAPPER, 0x21, 0x25]) == "f22"


def test_two_calls_of_one_function() -> None:
    """One line of main keeps, another gives back: it is main, at the line of this stack."""
    stack = [frame(MALLOC), frame(WRAPPER), frame(MAIN), frame(0x50)]
    found = charged_frame(stack, giving_back([MALLOC, WRAPPER, MAIN + 5, 0x50]))
    assert found == frame(MAIN)


def test_inlined_functions_share_an_address() -> None:
    """They are one step outwards together with the frame that holds them."""
    inlined = frame(WRAPPER, inlined=True, function="inlined_wrapper")
    stack = [frame(MALLOC), inlined, frame(WRAPPER), frame(GUILTY), frame(MAIN)]
    assert charged_frame(stack, giving_back()) == inlined
    assert charged_frame(stack, giving_back([MALLOC, WRAPPER, INNOCENT])) == frame(GUILTY)


def test_a_stack_that_is_all_shared() -> None:
    """If it is the beginning of a (truncated) stack that frees, no caller further out is known."""
    assert kept_by([MALLOC, WRAPPER], [MALLOC, WRAPPER, INNOCENT]) == "make_room"


def test_a_call_that_serves_many_is_a_wrapper() -> None:
    """Most blocks of the process pass through it, for eight callers; of seven it may be the one to blame."""

    def charged(callers: int) -> str | None:
        many = [([MALLOC, WRAPPER, 0x100 + n, MAIN], 10, False) for n in range(callers)]
        known = Callers([*many, ([MALLOC, 0x60, MAIN], 50, False)])
        found = charged_frame([frame(a) for a in (MALLOC, WRAPPER, 0x100, MAIN)], known)
        return found.function if found else None

    assert charged(8) == "f100"
    assert charged(7) == "make_room"


def test_what_is_still_held_of_many_blocks() -> None:
    """A site that gives most back is itself no proof of a wrapper."""
    stack = [MALLOC, WRAPPER, GUILTY, MAIN]
    found = charged_frame([frame(a) for a in stack], giving_back(stack), is_given_back=True)
    assert found == frame(WRAPPER)


@pytest.mark.parametrize(
    "name",
    [
        *("xmalloc", "xcalloc", "zmalloc", "_PyObject_Malloc", "jv_mem_alloc", "CRYPTO_zalloc", "HeapAlloc"),
        *("xmlMemMallocWrap", "g_malloc0", "xstrdup", "OPENSSL_memdup", "mem::Pool::zalloc(unsigned long)"),
    ],
)
def test_names_that_leave_no_doubt(name: str) -> None:
    """Whatever else is known."""
    stack = [frame(MALLOC), frame(WRAPPER, function=name), frame(GUILTY), frame(MAIN)]
    assert charged_frame(stack, Callers()) == frame(GUILTY)


@pytest.mark.parametrize(
    "name",
    ["alloc_session", "allocate_table", "realloc_growth", "dup_request", "itemAlloc", "roomAllocate"],
)
def test_names_that_say_what_for(name: str) -> None:
    """They belong to functions that decide."""
    stack = [frame(MALLOC), frame(WRAPPER, function=name), frame(GUILTY), frame(MAIN)]
    assert charged_frame(stack, Callers()) == stack[1]


def test_rules_go_first() -> None:
    """Functions to skip are never charged, and no caller beyond a function to stop at."""
    stack = [frame(a) for a in (MALLOC, WRAPPER, GUILTY, MAIN)]
    assert charged_frame(stack, Callers(), ChargeRules(skip=("make_*", "guilty"))) == frame(MAIN)
    wrapped = giving_back([MALLOC, WRAPPER, INNOCENT])
    assert charged_frame(stack, wrapped, ChargeRules(stop=("make_room",))) == frame(WRAPPER)
    assert charged_frame(stack, Callers(), ChargeRules(skip=("*",))) == frame(WRAPPER)


@pytest.mark.parametrize(
    ("live", "allocated", "expected"), [(0, 23, True), (2, 23, True), (3, 23, False), (0, 0, False)]
)
def test_who_gives_back(live: int, allocated: int, expected: bool) -> None:
    """Nine of ten blocks are freed; a stack that allocated none frees none."""
    assert gives_back(SiteCounters(live, live, allocated, allocated)) is expected


_STACKS = st.lists(st.integers(1, 3), max_size=6)


@given(stack=_STACKS, others=st.lists(_STACKS, max_size=12))
def test_the_longest_common_beginning(stack: list[int], others: list[list[int]]) -> None:
    """As if each were compared with each."""

    def common(other: list[int]) -> int:
        pairs = zip(stack, other, strict=False)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(stack), len(other)))

    assert GivenBack(others).shared(stack) == max(map(common, others), default=0)
