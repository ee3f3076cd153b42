"""Which call sites commit the memory of a managed heap, and their verdicts."""

from __future__ import annotations

import pytest

from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.runtimes.runtime import LiveHeap
from bpfleakd.tracing.managed_heap import HeapTracking
from bpfleakd.tracing.owned_memory import Looks

HEAP, COMMIT = AllocationKind.HEAP, AllocationKind.COMMIT
NS_PER_S = 1_000_000_000


def frames(*functions: str) -> list[Frame]:
    """A stack of functions, the allocator first: of libc, or of node."""
    return [
        Frame(name, "node" if place else "libc.so.6", None, None, 0x1000 + place, FrameKind.NATIVE)
        for place, name in enumerate(functions)
    ]


def tracking(runtime: str, verdict: Verdict = Verdict.STEADY) -> HeapTracking:
    found = HeapTracking()
    found.heap = ManagedHeap(runtime, verdict, "what 9 collections leave alive", 1 << 20, 9, 2, 1e5, False)
    return found


PAGES = frames(
    "mprotect", "v8::base::OS::SetPermissions(void*)", "v8::internal::MemoryAllocator::AllocatePage()"
)
SLOTS = frames("malloc", "operator new(unsigned long)", "v8::internal::Page::AllocateFreeListCategories()")
# A weak callback runs in a collection, and allocates for the program.
CALLED_BACK = frames("malloc", "addon::Freed(void*)", "v8::internal::MarkCompactCollector::Finish()", "main")
BUFFER = frames(
    "malloc", "node::NodeArrayBufferAllocator::Allocate(unsigned long)", "v8::internal::Page::X()"
)


@pytest.mark.parametrize(
    ("kind", "stack", "expected"),
    [
        (COMMIT, PAGES, True),
        (HEAP, SLOTS, True),
        (HEAP, CALLED_BACK, False),
        (HEAP, BUFFER, False),
        (HEAP, frames("malloc", "v8::internal::Zone::Expand(unsigned long)"), False),
        (AllocationKind.FILE, PAGES, False),
        (HEAP, frames("malloc"), False),
    ],
)
def test_what_v8_takes_for_its_pages(kind: AllocationKind, stack: list[Frame], expected: bool) -> None:
    """Including its bookkeeping for each page; other allocations during its collections belong to others."""
    assert tracking("V8").is_committed_by(SiteKey(kind, 1), stack) is expected


@pytest.mark.parametrize(
    ("function", "module", "kind", "expected"),
    [
        ("WKS::gc_heap::allocate()", "libcoreclr.so", COMMIT, True),
        ("gc_heap::mine()", "shop", COMMIT, False),
        ("anything", "python3.11", AllocationKind.PYTHON, True),
    ],
)
def test_what_other_collectors_take(function: str, module: str, kind: AllocationKind, expected: bool) -> None:
    """By their functions, in their own files."""
    stack = [frames("mprotect")[0], Frame(function, module, None, None, 0x20, FrameKind.NATIVE)]
    assert tracking(".NET").is_committed_by(SiteKey(kind, 7), stack) is expected


def test_other_collectors_take_nothing_from_malloc() -> None:
    """And V8's functions are none of theirs."""
    java = tracking("JVM")
    assert not java.may_commit(SiteKey(HEAP, 1))
    assert not java.is_committed_by(SiteKey(COMMIT, 1), PAGES)


def test_what_is_said_of_such_a_site() -> None:
    """The heap's verdict replaces the site's. While the keeper is unknown, no method that commits leaks."""
    leak = SiteVerdict(Verdict.LEAK, 0.9, "grows", 1e5)
    key = SiteKey(COMMIT, 1)
    assert tracking("V8").on_site(key, PAGES, leak).verdict is Verdict.STEADY
    of_leak = tracking("V8", Verdict.LEAK)
    of_leak.teller = "--inspector"
    for site, stack in ((key, PAGES), (SiteKey(HEAP, 1), SLOTS)):
        found = of_leak.on_site(site, stack, leak)
        assert (found.verdict, found.leak_bytes_per_s) == (Verdict.GROWING, 0.0)
        assert found.reason == (
            "memory of the managed heap: what 9 collections leave alive;"
            " the function that keeps it is unknown: ask by `bpfleakctl types PID --inspector`"
        )
    for of_heap in (of_leak, tracking("V8", Verdict.GROWING)):
        of_heap.is_held = True
        explained = of_heap.on_site(key, PAGES, leak)
        assert (explained.verdict, explained.leak_bytes_per_s) == (Verdict.STEADY, 0.0)
        assert "the sites of kind managed" in explained.reason
    assert of_leak.on_site(SiteKey(HEAP, 1), BUFFER, leak) is leak


def test_what_is_said_of_arenas() -> None:
    """Python frees garbage at once, so the function that used up memory for objects is the leak's."""
    leak = SiteVerdict(Verdict.LEAK, 0.9, "grows", 1e5)
    found = tracking("CPython", Verdict.LEAK).on_site(SiteKey(AllocationKind.PYTHON, 1), [], leak)
    assert (found.verdict, found.leak_bytes_per_s) == (Verdict.LEAK, 1e5)
    assert "the function that keeps it is unknown" in found.reason


def test_a_heap_that_leaks_without_a_known_keeper() -> None:
    """The process' verdict says how to ask: no site does, if the heap has all its memory from the start."""
    of_leak = tracking("JVM", Verdict.LEAK)
    of_leak.teller = "--who"
    asked = "the function that keeps it is unknown: ask by `bpfleakctl types PID --who`"
    assert of_leak.of_process is not None
    assert of_leak.of_process.reason == f"what 9 collections leave alive; {asked}"
    steady = tracking("JVM")
    assert steady.of_process is steady.heap
    growing = tracking("JVM", Verdict.GROWING)
    assert growing.of_process is growing.heap
    growing.teller = "--who"
    assert growing.of_process is not None
    assert growing.of_process.reason.endswith(asked)
    of_leak.is_held = True
    assert of_leak.of_process is of_leak.heap


def heap_of(live_mib: list[float]) -> HeapTracking:
    """A heap with a full collection every ten seconds."""
    heap = HeapTracking()
    heap.note(
        LiveHeap(10 * second * NS_PER_S, int(mib * (1 << 20)), second, is_full=True)
        for second, mib in enumerate(live_mib, 1)
    )
    heap.judge("V8", 0, 10 * (len(live_mib) + 1) * NS_PER_S, 45.0)
    return heap


def test_pages_of_a_heap_that_stands_still_do_not_leak() -> None:
    """Whatever their number: what collections leave alive decides. A leaking heap is still called one."""
    leak = SiteVerdict(Verdict.LEAK, 0.8, "+5 MiB in 52s, steadily", 1e5)
    verdict = heap_of([20.0] * 9).on_site(SiteKey(COMMIT, 7), PAGES, leak)
    assert (verdict.verdict, verdict.leak_bytes_per_s) == (Verdict.STEADY, 0)
    leaking = heap_of([20.0 + 3 * number for number in range(9)])
    assert leaking.heap is not None
    assert leaking.heap.verdict is Verdict.LEAK


def readings(*, are_full: bool) -> list[LiveHeap]:
    """Of a heap that grows by 3 MiB in ten seconds."""
    return [
        LiveHeap(10 * number * NS_PER_S, (20 + 3 * number) << 20, number, is_full=are_full, is_reading=True)
        for number in range(1, 10)
    ]


@pytest.mark.parametrize(
    ("are_full", "fills", "expected", "words"),
    [
        (True, None, Verdict.LEAK, "(9 readings)"),
        (False, None, Verdict.GROWING, "it may be garbage in cycles until the next full collection)"),
        (True, "it may fill the deque of 9", Verdict.GROWING, "; it may fill the deque of 9"),
    ],
)
def test_a_heap_that_is_read(are_full: bool, fills: str | None, expected: Verdict, words: str) -> None:
    """It leaks, unless its growth may be garbage in cycles, or fills containers with a bound."""
    heap = HeapTracking()
    heap.note(readings(are_full=are_full))
    heap.fills = fills
    heap.judge("CPython", 0, 100 * NS_PER_S, 45.0)
    assert heap.heap is not None
    assert heap.heap.verdict is expected
    assert heap.heap.reason.endswith(words)


def full_s(heap: HeapTracking, until_s: float) -> float | None:
    return heap.looks(0, int(until_s * NS_PER_S)).full_s


def test_what_a_concurrent_collection_has_seen() -> None:
    """What the previous one left: it keeps objects that were young when it began."""
    heap = HeapTracking()
    heap.note([LiveHeap(10 * NS_PER_S, 9 << 20, 1, is_full=True, least_bytes=7 << 20)])
    assert full_s(heap, 99.0) is None
    heap.note([LiveHeap(20 * NS_PER_S, 9 << 20, 2, is_full=False)])
    heap.note([LiveHeap(30 * NS_PER_S, 9 << 20, 3, is_full=True, least_bytes=7 << 20)])
    assert full_s(heap, 99.0) == 10.0
    heap.note([LiveHeap(40 * NS_PER_S, 9 << 20, 4, is_full=True)])
    assert full_s(heap, 99.0) == 40.0


def test_memory_of_objects_that_no_full_collection_has_confirmed() -> None:
    """It grows, as far as is known."""
    heap, leak = heap_of([20.0] * 9), SiteVerdict(Verdict.LEAK, 0.8, "+5 MiB in 52s, steadily", 1e5)
    assert heap.looks(0, 95 * NS_PER_S) == Looks(
        90.0, 90.0, tuple((10.0 * number, number) for number in range(1, 10))
    )
    assert full_s(heap, 89.0) == 80.0
    assert full_s(heap, 9.0) is None
    heap.owned.judge([(3, "it may be garbage"), (4, None)])
    found = heap.on_site(SiteKey(HEAP, 1), BUFFER, leak, 3)
    assert (found.verdict, found.leak_bytes_per_s) == (Verdict.GROWING, 1e5)
    assert found.reason == ("+5 MiB in 52s, steadily; it may be garbage")
    assert heap.on_site(SiteKey(HEAP, 1), BUFFER, leak, 4) is leak
