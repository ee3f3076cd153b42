"""Memory that objects of a managed heap own: its owner, and when it is a leak."""

from __future__ import annotations

import pytest

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.tracing.owned_memory import (
    Looks,
    OwnedGrowth,
    OwnedMemory,
    Owner,
    owner_of,
    why_unconfirmed,
    why_unconfirmed_pages,
)

HEAP, MMAP = AllocationKind.HEAP, AllocationKind.MMAP
MIB = 1 << 20
LEAK_AFTER_S = 45.0


def native(function: str, module: str) -> Frame:
    return Frame(function, module, None, None, 0x1000, FrameKind.NATIVE)


def of_library(function: str) -> Frame:
    return Frame(f"System.{function}", "System.Private.CoreLib", None, None, 0x4000, FrameKind.JIT)


def method(function: str) -> Frame:
    return Frame(function, "[jit]", None, None, 0x2000, FrameKind.JIT)


MALLOC = native("malloc", "libc.so.6")
SERVE = method("JS:~serve /srv/shop.js:3:4")
CALL = native("v8::internal::Builtin_HandleApiCall(int)", "node")
OS_MALLOC = native("os::malloc(unsigned long)", "libjvm.so")
UNSAFE = native("Unsafe_AllocateMemory0", "libjvm.so")
ALLOCATE = method("jdk.internal.misc.Unsafe.allocateMemory")
DEFINE = native("Java_java_lang_ClassLoader_defineClass1", "libjava.so")
MAIN = method("Shop.main")
STUB = method("dynamicClass.IL_STUB_PInvoke")
HGLOBAL = Frame(
    "System.Runtime.InteropServices.Marshal.AllocHGlobal",
    "System.Private.CoreLib",
    None,
    None,
    0x3000,
    FrameKind.JIT,
)
NATIVE_ALLOC = native("SystemNative_Malloc", "libSystem.Native.so")


@pytest.mark.parametrize(
    ("runtime", "frames", "expected"),
    [
        (
            "V8",
            [MALLOC, native("node::NodeArrayBufferAllocator::Allocate(int)", "node"), SERVE],
            Owner.RUNTIME,
        ),
        (
            "V8",
            [MALLOC, native("deflateInit2_", "libz.so.1"), native("node::Init()", "libnode.so.108")],
            Owner.RUNTIME,
        ),
        # Memory of an addon, or of a program that V8 is part of, may have an owner below JavaScript only.
        ("V8", [MALLOC, native("remember", "sessions.node"), CALL, SERVE], Owner.PROGRAM),
        (
            "V8",
            [MALLOC, native("vips_new", "libvips.so.42"), native("run", "sharp.node"), CALL, SERVE],
            Owner.PROGRAM,
        ),
        ("V8", [MALLOC, native("shop::keep()", "shop"), CALL, SERVE], Owner.PROGRAM),
        ("V8", [MALLOC, native("keep", "libshop.so"), native("main", "shop")], None),
        ("JVM", [MALLOC, OS_MALLOC, native("ClassLoaderData::add()", "libjvm.so"), MAIN], Owner.RUNTIME),
        ("JVM", [MALLOC, OS_MALLOC, native("JVM_DefineClass", "libjvm.so"), DEFINE, MAIN], Owner.RUNTIME),
        ("JVM", [MALLOC, OS_MALLOC, native("start_thread", "libc.so.6")], Owner.RUNTIME),
        # The class library's objects have cleaners; the program's may.
        (
            "JVM",
            [
                MALLOC,
                native("deflateInit2_", "libz.so.1"),
                native("Java_java_util_zip_Deflater_init", "libzip.so"),
                method("java.util.zip.Deflater.init"),
                MAIN,
            ],
            Owner.LIBRARY,
        ),
        (
            "JVM",
            [MALLOC, OS_MALLOC, UNSAFE, ALLOCATE, method("java.nio.DirectByteBuffer.<init>"), MAIN],
            Owner.LIBRARY,
        ),
        (
            "JVM",
            [MALLOC, OS_MALLOC, UNSAFE, ALLOCATE, method("sun.misc.Unsafe.allocateMemory"), MAIN],
            Owner.PROGRAM,
        ),
        ("JVM", [MALLOC, native("remember", "libsessions.so"), MAIN], Owner.PROGRAM),
        (
            "JVM",
            [MALLOC, OS_MALLOC, native("jni_NewGlobalRef", "libjvm.so"), native("keep", "libx.so")],
            None,
        ),
        ("JVM", [MALLOC], None),
        (".NET", [MALLOC, native("session_keep", "libsessions.so"), STUB, MAIN], Owner.PROGRAM),
        (".NET", [MALLOC, NATIVE_ALLOC, STUB, HGLOBAL, MAIN], Owner.PROGRAM),
        (".NET", [MALLOC, NATIVE_ALLOC, STUB, HGLOBAL, HGLOBAL, of_library("Handle"), MAIN], Owner.LIBRARY),
        (
            ".NET",
            [
                MALLOC,
                native("inflateInit2_", "libSystem.IO.Compression.Native.so"),
                STUB,
                of_library("Inflater"),
                MAIN,
            ],
            Owner.LIBRARY,
        ),
        (".NET", [MALLOC, native("JIT_Compile", "libclrjit.so"), native("start_thread", "libc.so.6")], None),
        ("CPython", [MALLOC, native("PyObject_Malloc", "python3.11")], None),
    ],
)
def test_who_may_own_it(runtime: str, frames: list[Frame], expected: Owner | None) -> None:
    """By the code that allocates, of every kind of memory but the stacks of threads."""
    for kind in (HEAP, MMAP):
        assert owner_of(runtime, SiteKey(kind, 1), frames) is expected
    assert owner_of(runtime, SiteKey(AllocationKind.THREAD_STACK, 1), frames) is None


def looks(
    full_s: float | None, any_s: float | None = None, counts: tuple[tuple[float, int], ...] = ()
) -> Looks:
    return Looks(full_s, any_s if any_s is not None else full_s, counts)


def judged(owned: OwnedMemory, owner: Owner, growth: OwnedGrowth, seen: Looks, runtime: str = "JVM") -> bool:
    """Whether a site in row 3 is a leak."""
    owned.judge([(3, why_unconfirmed(owner, growth, seen, LEAK_AFTER_S, runtime))])
    return 3 not in owned.unconfirmed


@pytest.mark.parametrize(
    ("owner", "last_full_s", "gained_bytes", "is_leak"),
    [
        (Owner.LIBRARY, None, 9 * MIB, False),
        # Before the growth, or in its first half: what came later may be garbage.
        (Owner.LIBRARY, 20.0, 9 * MIB, False),
        (Owner.LIBRARY, 100.0, 9 * MIB, False),
        (Owner.LIBRARY, 140.0, 9 * MIB, True),
        (Owner.RUNTIME, 140.0, 9 * MIB, True),
        (Owner.LIBRARY, 140.0, 60 << 10, True),
        (Owner.RUNTIME, 140.0, 60 << 10, False),
    ],
)
def test_what_makes_it_a_leak(
    owner: Owner, last_full_s: float | None, gained_bytes: float, is_leak: bool
) -> None:
    """A full collection that left it; and enough of it, if it is the runtime's own."""
    growth = OwnedGrowth(30.0, 230.0, gained_bytes)
    assert judged(OwnedMemory(), owner, growth, looks(last_full_s, any_s=225.0)) is is_leak


@pytest.mark.parametrize(("any_s", "is_leak"), [(None, False), (100.0, False), (140.0, True)])
def test_native_code_of_the_program(any_s: float | None, is_leak: bool) -> None:
    """Any collection that left it: its objects may have cleaners."""
    growth = OwnedGrowth(30.0, 230.0, 60 << 10)
    assert judged(OwnedMemory(), Owner.PROGRAM, growth, looks(None, any_s)) is is_leak


@pytest.mark.parametrize(
    ("runtime", "counts", "is_leak"),
    [
        # The first quarter has 200 of them, the rest 15 or 16.
        ("JVM", ((31.0, 0), (79.0, 200), (81.0, 201), (229.0, 216)), False),
        ("JVM", ((31.0, 0), (79.0, 200), (81.0, 201), (229.0, 217)), True),
        # V8 promotes an object that has survived two.
        ("V8", ((31.0, 0), (79.0, 200), (81.0, 201), (229.0, 600)), False),
    ],
)
def test_what_survives_many_collections(
    runtime: str, counts: tuple[tuple[float, int], ...], is_leak: bool
) -> None:
    """More than a dropped object can survive while it is young: its owner has not been dropped."""
    growth = OwnedGrowth(30.0, 230.0, 9 * MIB)
    seen = looks(None, counts[-1][0], counts)
    assert judged(OwnedMemory(), Owner.LIBRARY, growth, seen, runtime) is is_leak


def test_a_short_growth() -> None:
    """A collection has to be as late as any leak takes."""
    owned, growth = OwnedMemory(), OwnedGrowth(30.0, 80.0, 9 * MIB)
    assert not judged(owned, Owner.LIBRARY, growth, looks(70.0))
    assert judged(owned, Owner.LIBRARY, growth, looks(75.0))


def test_a_leak_stays_one_while_it_goes_on() -> None:
    """However late the next full collection is; after an end, new growth is a new leak."""
    owned, later = OwnedMemory(), OwnedGrowth(30.0, 900.0, 9 * MIB)
    assert judged(owned, Owner.LIBRARY, OwnedGrowth(30.0, 230.0, 9 * MIB), looks(140.0))
    assert judged(owned, Owner.LIBRARY, later, looks(140.0))
    owned.judge([])
    assert not judged(owned, Owner.LIBRARY, later, looks(140.0))


def test_it_is_announced_when_it_is_confirmed() -> None:
    """Once, and not if it has ended before; sites of other kinds do not wait."""
    owned, growth = OwnedMemory(), OwnedGrowth(30.0, 230.0, 9 * MIB)

    def judge(rows: tuple[int, ...], seen: Looks) -> None:
        why = why_unconfirmed(Owner.LIBRARY, growth, seen, LEAK_AFTER_S, "JVM")
        owned.judge((row, why) for row in rows)

    judge((3, 4), looks(None))
    assert owned.announceable([3, 4, 7]) == [7]
    judge((3,), looks(200.0))
    assert owned.announceable([]) == [3]
    judge((3, 4), looks(200.0))
    assert owned.announceable([]) == []


@pytest.mark.parametrize(
    ("seconds", "gained_bytes", "gained_count", "is_leak"),
    [
        (60, 24 * 256 << 10, 24, False),
        (140, 56 * 256 << 10, 56, True),
        (60, 1 << 20, 10_000, True),
        # One block that becomes larger.
        (60, 1 << 20, 0, False),
    ],
)
def test_pages_of_a_heap_that_is_not_read_must_grow_for_longer(
    seconds: float, gained_bytes: float, gained_count: float, is_leak: bool
) -> None:
    growth = OwnedGrowth(5.0, 5.0 + seconds, gained_bytes, gained_count)
    assert (why_unconfirmed_pages(growth, LEAK_AFTER_S) is None) == is_leak
