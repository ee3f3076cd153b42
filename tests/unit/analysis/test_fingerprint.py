"""Fingerprints: the same site in every run of a build, and no two sites the same."""

from __future__ import annotations

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.analysis.fingerprint import fingerprint
from bpfleakd.model.code.stack import Frame, FrameKind, Stack, StackEnd
from bpfleakd.model.site import AllocationKind

from .frames import jit, native, unknown

HEAP = AllocationKind.HEAP
LIBC_ID, SHOP_ID = "8c51c1a2" * 5, "23e5101f" * 5


def stack_of(*frames: tuple[Frame, str | None], truncated: StackEnd | None = None) -> Stack:
    return Stack(tuple(f for f, _ in frames), tuple(build_id for _, build_id in frames), truncated)


STACK = stack_of(
    (native("malloc", "libc.so.6", 0x99E00), LIBC_ID),
    (native("leak", "shop", 0x1150), SHOP_ID),
    (native("main", "shop", 0x11A7), SHOP_ID),
)


def changed(stack: Stack, index: int, **changes: object) -> Stack:
    frames = list(stack.frames)
    frames[index] = replace(frames[index], **changes)
    return replace(stack, frames=tuple(frames))


def test_its_form() -> None:
    """16 hexadecimal digits."""
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(HEAP, STACK))
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(HEAP, stack_of()))


def test_it_never_changes() -> None:
    """A dashboard remembers fingerprints: this one is the same in every version."""
    text = f"heap\0{LIBC_ID}+99e00\0{SHOP_ID}+1150\0{SHOP_ID}+11a7"
    assert fingerprint(HEAP, STACK) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_load_addresses_do_not_matter() -> None:
    """Another run, with other addresses, has the same sites."""
    moved = replace(STACK, frames=tuple(replace(f, address=f.address + 0x7000) for f in STACK.frames))
    assert fingerprint(HEAP, moved) == fingerprint(HEAP, STACK)


def test_names_of_native_code_do_not_matter() -> None:
    """Debug information that comes later, or is not there, changes the names but not the site."""
    stripped = changed(STACK, 1, function=None, location=None)
    located = changed(STACK, 1, location="shop.c:23", module="/opt/shop")
    assert fingerprint(HEAP, stripped) == fingerprint(HEAP, located) == fingerprint(HEAP, STACK)


def test_inlined_frames_do_not_matter() -> None:
    """They follow from the address of the function that holds them, and come with debug information."""
    inlined = native("std::make_unique", "shop", 0x1150, inlined=True)
    frames = (STACK.frames[0], inlined, *STACK.frames[1:])
    with_inlined = Stack(frames, (LIBC_ID, SHOP_ID, SHOP_ID, SHOP_ID), None)
    assert fingerprint(HEAP, with_inlined) == fingerprint(HEAP, STACK)


def test_what_tells_sites_apart() -> None:
    """Another kind, offset, build or depth is another site."""
    others = [
        fingerprint(AllocationKind.MMAP, STACK),
        fingerprint(HEAP, changed(STACK, 1, offset=0x1151)),
        fingerprint(HEAP, replace(STACK, build_ids=(LIBC_ID, LIBC_ID, SHOP_ID))),
        fingerprint(HEAP, Stack(STACK.frames[:2], STACK.build_ids[:2], None)),
        fingerprint(HEAP, Stack(STACK.frames[::-1], STACK.build_ids[::-1], None)),
        fingerprint(HEAP, STACK),
    ]
    assert len(set(others)) == len(others)


def test_files_without_a_build_id() -> None:
    """Their name stands in for it."""
    nameless = replace(STACK, build_ids=(LIBC_ID, None, None))
    assert fingerprint(HEAP, nameless) != fingerprint(HEAP, STACK)
    assert fingerprint(HEAP, changed(nameless, 1, module="mart")) != fingerprint(HEAP, nameless)
    moved = changed(nameless, 1, address=23)
    assert fingerprint(HEAP, moved) == fingerprint(HEAP, nameless)


def test_code_made_at_run_time() -> None:
    """A method is known by its name, wherever the JIT put it this time."""

    def with_method(frame: Frame) -> str:
        return fingerprint(HEAP, stack_of((STACK.frames[0], LIBC_ID), (frame, None)))

    assert with_method(jit("Cart::Add", address=0x1000)) == with_method(jit("Cart::Add", address=0x9000))
    assert with_method(jit("Cart::Add")) != with_method(jit("Cart::Remove"))
    assert with_method(unknown(0x1000)) == with_method(unknown(0x9000)) != with_method(jit("Cart::Add"))


def test_the_vdso() -> None:
    """The kernel's own code is known by its function: its offsets are another kernel's."""
    frame = Frame("clock_gettime", "[vdso]", 0x23, None, 0x7FFF_0000_0023, FrameKind.VDSO)
    moved = replace(frame, offset=0x101)
    assert fingerprint(HEAP, stack_of((frame, None))) == fingerprint(HEAP, stack_of((moved, None)))


def test_an_end_does_not_matter() -> None:
    """A truncated walk does not change the site."""
    assert fingerprint(HEAP, replace(STACK, truncated=StackEnd.DEPTH)) == fingerprint(HEAP, STACK)


def test_names_that_are_no_text() -> None:
    """A file name of any bytes can be hashed."""
    nameless = stack_of((native(None, "\udcff\u202e"), None))
    assert fingerprint(HEAP, nameless) != fingerprint(HEAP, stack_of((native(None, "other"), None)))


FRAMES = st.one_of(
    st.builds(native, st.just("f"), st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.builds(jit, st.sampled_from(["a", "b"])),
    st.just(unknown()),
)


@given(one=st.lists(FRAMES, max_size=4), other=st.lists(FRAMES, max_size=4))
def test_equal_fingerprints_are_equal_sites(one: list[Frame], other: list[Frame]) -> None:
    """Frames do not run into each other: two stacks agree if and only if their frames do."""

    def identities(frames: list[Frame]) -> list[object]:
        return [(f.module, f.offset) if f.kind is FrameKind.NATIVE else f.function for f in frames]

    prints = [fingerprint(HEAP, stack_of(*((frame, None) for frame in frames))) for frames in (one, other)]
    assert (prints[0] == prints[1]) == (identities(one) == identities(other))
