"""What a JVM uses memory for, besides its heap."""

from __future__ import annotations

import pytest

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict, Verdict
from bpfleakd.tracing.java_memory import JavaUse, growth_by_use, use_of, with_use, with_uses

MMAP, HEAP = SiteKey(AllocationKind.MMAP, 1), SiteKey(AllocationKind.HEAP, 2)


def frames(*functions: str, library: str = "libjvm.so") -> list[Frame]:
    """Functions of the machine below mmap, and the method that called it."""
    native = [Frame(name, library, None, None, 0x1000, FrameKind.NATIVE) for name in functions]
    libc = Frame("mmap", "libc.so.6", None, None, 0x10, FrameKind.NATIVE)
    return [libc, *native, Frame("Metaspace::mine", None, None, None, 0x20, FrameKind.JIT)]


CLASSES = frames(
    "os::commit_memory(char*, unsigned long, bool)",
    "metaspace::VirtualSpaceNode::commit_range(MetaWordImpl**, unsigned long)",
    "Metaspace::allocate(ClassLoaderData*, unsigned long)",
)
THREAD = [Frame("clone3", "libc.so.6", None, None, 0x30, FrameKind.NATIVE)]


def machines(*functions: str) -> list[Frame]:
    """Functions of the machine only, from the allocator to the beginning of the thread."""
    return [*frames(*functions, "thread_native_entry(Thread*)")[:-1], *THREAD]


COMPILED = frames("os::commit_memory(char*, unsigned long, bool)", "CodeHeap::expand_by(unsigned long)")


@pytest.mark.parametrize(
    ("key", "stack", "expected"),
    [
        (MMAP, CLASSES, JavaUse.METASPACE),
        (MMAP, COMPILED, JavaUse.CODE_CACHE),
        (HEAP, CLASSES, None),
        (MMAP, frames("G1PageBasedVirtualSpace::commit(unsigned long)"), None),
        (MMAP, frames("metaspace::mine()", library="shop.so"), None),
        (MMAP, [], None),
        (HEAP, machines("os::malloc", "G1CardSet::add_card"), JavaUse.OWN),
        (HEAP, machines("os::malloc"), JavaUse.OWN),
        (HEAP, machines("os::malloc")[:-1], None),
        (HEAP, machines("AllocateHeap") + frames()[-1:] + machines("thread_entry"), None),
        (HEAP, frames("agent_callback", library="libagent.so")[:-1] + machines("post_event"), None),
        (HEAP, frames("mine", library="libshop.so")[:-1] + THREAD, None),
    ],
)
def test_what_it_is_for(key: SiteKey, stack: list[Frame], expected: JavaUse | None) -> None:
    assert use_of(key, stack) is expected


def test_what_is_said() -> None:
    """For the site, and for the process if it is most of the leak."""
    leak = SiteVerdict(Verdict.LEAK, 0.9, "+13.1 MiB in 40s", 3e5)
    assert with_use(leak, MMAP, CLASSES).reason == "metaspace: +13.1 MiB in 40s"
    assert with_use(leak, HEAP, CLASSES) is leak

    growth = growth_by_use(
        [(MMAP, CLASSES, 3e5), (MMAP, CLASSES, 1e5), (MMAP, COMPILED, 1e4), (HEAP, [], 9e9)]
    )
    assert growth == {JavaUse.METASPACE: 4e5, JavaUse.CODE_CACHE: 1e4}
    process = ProcessVerdict(Verdict.LEAK, "3 call sites leak", 6e5, None, None, None, None, None, None)
    assert with_uses(process, growth).reason == (
        "3 call sites leak; most of that is metaspace: classes, by loaders that are kept"
    )
    assert with_uses(process, {JavaUse.CODE_CACHE: 1e4}) is process
    assert with_uses(process, {}) is process
