"""Memory that objects of a managed heap own: its owner, and when it is a leak."""

from __future__ import annotations

import pytest

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.tracing.owned_memory import OwnedGrowth, OwnedMemory, is_owned_by_objects

HEAP, MMAP = AllocationKind.HEAP, AllocationKind.MMAP
MIB = 1 << 20
LEAK_AFTER_S = 45.0


def native(function: str, module: str) -> Frame:
    return Frame(function, module, None, None, 0x1000, FrameKind.NATIVE)


def method(function: str) -> Frame:
    return Frame(function, "[jit]", None, None, 0x2000, FrameKind.JIT)


MALLOC = native("malloc", "libc.so.6")
SERVE = method("JS:~serve /srv/shop.js:3:4")
CALL = native("v8::internal::Builtin_HandleApiCall(int)", "node")
OS_MALLOC = native("os::malloc(unsigned long)", "libjvm.so")
DEFINE = native("Java_java_lang_ClassLoader_defineClass1", "libjava.so")
MAIN = method("Shop.main")


@pytest.mark.parametrize(
    ("runtime", "frames", "expected"),
    [
        ("V8", [MALLOC, native("node::NodeArrayBufferAllocator::Allocate(int)", "node"), SERVE], True),
        (
            "V8",
            [MALLOC, native("deflateInit2_", "libz.so.1"), native("node::Init()", "libnode.so.108")],
            True,
        ),
        # Memory of an addon is its own business, and so is that of a program that V8 is part of.
        ("V8", [MALLOC, native("remember", "sessions.node"), CALL, SERVE], False),
        (
            "V8",
            [MALLOC, native("vips_new", "libvips.so.42"), native("run", "sharp.node"), CALL, SERVE],
            False,
        ),
        ("V8", [MALLOC, native("shop::keep()", "shop"), CALL, SERVE], False),
        ("V8", [MALLOC, native("keep", "libshop.so"), native("main", "shop")], False),
        ("JVM", [MALLOC, OS_MALLOC, native("ClassLoaderData::add()", "libjvm.so"), MAIN], True),
        ("JVM", [MALLOC, OS_MALLOC, native("JVM_DefineClass", "libjvm.so"), DEFINE, MAIN], True),
        ("JVM", [MALLOC, native("getAllInterfaces", "libnet.so"), MAIN], False),
        ("JVM", [MALLOC, OS_MALLOC, native("start_thread", "libc.so.6")], True),
        ("JVM", [MALLOC, OS_MALLOC, native("Unsafe_AllocateMemory0", "libjvm.so"), MAIN], False),
        (
            "JVM",
            [MALLOC, OS_MALLOC, native("jni_NewGlobalRef", "libjvm.so"), native("keep", "libx.so")],
            False,
        ),
        ("JVM", [MALLOC, native("remember", "libsessions.so"), MAIN], False),
        ("JVM", [MALLOC], False),
        ("CPython", [MALLOC, native("PyObject_Malloc", "python3.11")], False),
    ],
)
def test_what_objects_own(runtime: str, frames: list[Frame], expected: bool) -> None:
    """Memory that the runtime allocates by itself, not native code of the program."""
    for kind in (HEAP, MMAP):
        assert is_owned_by_objects(runtime, SiteKey(kind, 1), frames) is expected
    assert not is_owned_by_objects(runtime, SiteKey(AllocationKind.THREAD_STACK, 1), frames)


@pytest.mark.parametrize(
    ("last_full_s", "gained_bytes", "is_leak"),
    [
        (None, 9 * MIB, False),
        # Before the growth, or in its first half: what came later may be garbage.
        (20.0, 9 * MIB, False),
        (100.0, 9 * MIB, False),
        (140.0, 9 * MIB, True),
        (140.0, 60 << 10, False),
    ],
)
def test_what_makes_it_a_leak(last_full_s: float | None, gained_bytes: float, is_leak: bool) -> None:
    """A full collection that left it, and enough of it."""
    owned = OwnedMemory()
    owned.judge([(3, OwnedGrowth(30.0, 230.0, gained_bytes))], last_full_s, LEAK_AFTER_S)
    assert (3 not in owned.unconfirmed) is is_leak


def test_a_short_growth() -> None:
    """A collection has to be as late as any leak takes."""
    owned = OwnedMemory()
    owned.judge([(3, OwnedGrowth(30.0, 80.0, 9 * MIB))], 70.0, LEAK_AFTER_S)
    assert 3 in owned.unconfirmed
    owned.judge([(3, OwnedGrowth(30.0, 80.0, 9 * MIB))], 75.0, LEAK_AFTER_S)
    assert 3 not in owned.unconfirmed


def test_a_leak_stays_one_while_it_goes_on() -> None:
    """However late the next full collection is; after an end, new growth is a new leak."""
    owned, later = OwnedMemory(), OwnedGrowth(30.0, 900.0, 9 * MIB)
    owned.judge([(3, OwnedGrowth(30.0, 230.0, 9 * MIB))], 140.0, LEAK_AFTER_S)
    owned.judge([(3, later)], 140.0, LEAK_AFTER_S)
    assert owned.unconfirmed == {}
    owned.judge([], 140.0, LEAK_AFTER_S)
    owned.judge([(3, later)], 140.0, LEAK_AFTER_S)
    assert 3 in owned.unconfirmed


def test_it_is_announced_when_it_is_confirmed() -> None:
    """Once, and not if it has ended before; sites of other kinds do not wait."""
    owned, growth = OwnedMemory(), OwnedGrowth(30.0, 230.0, 9 * MIB)
    owned.judge([(3, growth), (4, growth)], None, LEAK_AFTER_S)
    assert owned.announceable([3, 4, 7]) == [7]
    owned.judge([(3, growth)], 200.0, LEAK_AFTER_S)
    assert owned.announceable([]) == [3]
    owned.judge([(3, growth), (4, growth)], 200.0, LEAK_AFTER_S)
    assert owned.announceable([]) == []
