"""Verdicts on managed heaps, by what collections leave alive."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.verdict import Verdict
from bpfleakd.verdicts.managed_heap import Collections, classify_managed_heap, with_managed_heap
from bpfleakd.verdicts.process_verdict import FoundGrowth, classify_process

MIB = 1 << 20
LEAK_AFTER_S = 45.0


def heap(
    live_mib: list[float],
    *,
    full: tuple[int, ...] = (),
    every_s: float = 10.0,
    often: bool = False,
    tolerated: float = 0.0,
    limit_mib: float | None = None,
    was_leak: bool = False,
) -> ManagedHeap:
    """The verdict on a heap of such collections.

    Those in `full` places are full; they leave this share of garbage alive at most.
    """
    times_s = np.arange(1, len(live_mib) + 1) * every_s
    is_full = np.isin(np.arange(len(live_mib)), full)
    live_bytes = np.array(live_mib, np.float64) * MIB
    collections = Collections(times_s, live_bytes, is_full, (1 - tolerated) * live_bytes)
    watched_s = float(times_s[-1]) if len(times_s) else 600.0
    limit_bytes = None if limit_mib is None else int(limit_mib * MIB)
    return classify_managed_heap(
        ".NET",
        collections,
        watched_s,
        LEAK_AFTER_S,
        often_full=often,
        was_leak=was_leak,
        limit_bytes=limit_bytes,
    )


def test_a_heap_that_was_never_collected() -> None:
    """However long, and however much was allocated: nothing is known."""
    found = heap([])
    assert (found.verdict, found.live_bytes, found.growth_bytes_per_s) == (Verdict.UNKNOWN, None, 0.0)
    assert "not been collected yet" in found.reason


@pytest.mark.parametrize("often", [False, True])
@pytest.mark.parametrize("full", [(5, 11), (2, 5, 8, 11), tuple(range(12))])
def test_what_survives_full_collections_leaks(full: tuple[int, ...], often: bool) -> None:
    found = heap([10 + 2.0 * i for i in range(12)], full=full, often=often)
    assert found.verdict is Verdict.LEAK
    assert found.growth_bytes_per_s == pytest.approx(0.2 * MIB, rel=0.01)
    assert (found.collections, found.full_collections) == (12, len(full))


def test_a_minute_of_growth_is_less_sure_than_ten() -> None:
    """A phase of work that ends by freeing everything looks the same, however often it was looked at."""
    short, many, long = (
        heap([10 + 2.0 * i for i in range(count)], full=(2, 5, 8), every_s=every_s)
        for count, every_s in ((9, 8.0), (72, 1.0), (72, 10.0))
    )
    assert 0.7 < short.growth_confidence < many.growth_confidence < 0.85
    assert long.growth_confidence > 0.99


def test_growth_without_a_full_collection_is_no_leak_yet() -> None:
    """Old objects may be garbage."""
    found = heap([10 + 2.0 * i for i in range(60)])
    assert found.verdict is Verdict.GROWING
    assert "no full one" in found.reason


def test_garbage_that_grows_old() -> None:
    """Sessions that live for minutes: it rises until a full collection clears it away, again and again."""
    saw = [10 + 2.0 * (i % 20) for i in range(61)]
    for count in range(1, len(saw) + 1):
        full = tuple(i for i in range(count) if i % 20 == 0)
        assert heap(saw[:count], full=full).verdict is not Verdict.LEAK, count


def test_a_leak_below_garbage_that_grows_old() -> None:
    """Each full collection leaves more than the one before."""
    saw = [10 + 2.0 * (i % 5) + i for i in range(60)]
    assert heap(saw, full=tuple(range(0, 60, 5))).verdict is Verdict.LEAK


def test_a_cache_that_has_filled() -> None:
    """Growth that has ended is none."""
    live = [10.0 + 4 * min(i, 6) for i in range(60)]
    assert heap(live, full=tuple(range(0, 60, 6))).verdict is not Verdict.LEAK
    assert heap([34.0 + 0.1 * (i % 3) for i in range(60)], full=(0, 59)).verdict is Verdict.STEADY


def test_ten_collections_of_a_leak_below_noise() -> None:
    """That the last five happen not to rise ends nothing: it is too early for any word but that."""
    found = heap([4.0, 4.4, 4.9, 5.2, 5.8, 6.3, 6.1, 6.2, 6.0, 6.3, 6.2], full=(3, 9))
    assert found.verdict is Verdict.UNKNOWN
    assert "too few" in found.reason


def test_a_cache_that_fills_ever_more_slowly() -> None:
    """Growing, while it fills; it is not over, and may be a leak after all."""
    live = [20 + 10 * float(np.log1p(i)) for i in range(30)]
    for count in range(8, 31):
        found = heap(live[:count], full=tuple(range(count)))
        assert found.verdict is Verdict.GROWING, count
        assert "ever more slowly" in found.reason


def test_growth_that_has_ended() -> None:
    """An even cache is called a leak while it fills, and steady once it is full for as long."""
    live = [20 + 5.0 * min(i, 8) for i in range(20)]
    verdicts = [heap(live[:count], full=tuple(range(count))) for count in (8, 16, 20)]
    assert [found.verdict for found in verdicts] == [Verdict.LEAK, Verdict.STEADY, Verdict.STEADY]
    assert "does not grow any more" in verdicts[1].reason
    assert verdicts[1].growth_bytes_per_s == 0.0


@pytest.mark.parametrize("often", [False, True])
def test_a_leak_that_reaches_the_limit_of_the_heap(often: bool) -> None:
    """The runtime collects ever more often, which slows the program down, until it stands still: no cache."""
    live = [20 + 230 * (1 - float(np.exp(-i / 15))) for i in range(60)]
    for count in range(45, 61):
        full = tuple(range(count))
        found = heap(live[:count], full=full, often=often, limit_mib=256, was_leak=True)
        assert found.verdict is Verdict.LEAK, count
        # with room above it, or without a leak before, it may be a cache
        for limit_mib, was_leak in ((None, True), (400, True), (256, False)):
            found = heap(live[:count], full=full, often=often, limit_mib=limit_mib, was_leak=was_leak)
            assert found.verdict is not Verdict.LEAK, count
    assert "ever more slowly, near its limit" in heap(live[:45], full=tuple(range(45)), limit_mib=256).reason


@pytest.mark.parametrize("share", [0.85, 0.95])
def test_a_heap_that_is_steady_near_its_limit(share: float) -> None:
    """That it was a leak while it filled is refuted in the end by what does not grow."""
    live = [256 * share * min(1, i / 10) + 0.2 * (i % 3) for i in range(200)]
    found = heap(live[100:], full=tuple(range(100)), limit_mib=256, was_leak=True)
    assert found.verdict is Verdict.STEADY


def test_a_leak_is_one_until_it_is_refuted() -> None:
    """A full collection among much garbage confirms less than the trend says, and refutes nothing."""
    live = [10 + 2.0 * i for i in range(20)]
    live[10:16] = [42, 43, 44, 45, 46, 47]
    times_s, is_full = np.arange(1, 21) * 10.0, np.isin(np.arange(20), [19])
    live_bytes = np.array(live) * MIB
    collections = Collections(times_s, live_bytes, is_full, live_bytes)
    for was_leak, verdict in ((False, Verdict.GROWING), (True, Verdict.LEAK)):
        found = classify_managed_heap(
            ".NET", collections, 200.0, LEAK_AFTER_S, often_full=True, was_leak=was_leak
        )
        assert found.verdict is verdict


def test_a_collector_that_tolerates_more_garbage_refutes_nothing() -> None:
    """G1 tolerates more garbage the larger the heap is, so the memory that is certainly alive falls."""
    live = [10 + 2.0 * i for i in range(24)]
    for tolerated, verdict in ((0.3, Verdict.LEAK), (0.9, Verdict.LEAK)):
        found = heap(live, full=(23,), tolerated=tolerated, was_leak=True)
        assert found.verdict is verdict
    assert heap(live, full=(23,), tolerated=0.9).verdict is Verdict.GROWING
    assert heap([*live[:-1], 10.0], full=(23,), tolerated=0.9, was_leak=True).verdict is not Verdict.LEAK


@pytest.mark.parametrize("fills", [1, 2, 3, 4])
@pytest.mark.parametrize("full_every", [4, 9, 14])
def test_a_cache_that_fills_first_and_makes_garbage_later(fills: int, full_every: int) -> None:
    """Its first collections say nothing about a leak once it is full."""
    alive = [10.0 + 50 * min(i / fills, 1) for i in range(80)]
    garbage = [3.0 * (i % full_every) for i in range(80)]
    for count in range(fills + 3, len(alive) + 1):
        full = tuple(range(0, count, full_every))
        found = heap([a + g for a, g in zip(alive[:count], garbage, strict=False)], full=full, often=True)
        assert found.verdict is not Verdict.LEAK, count


@pytest.mark.parametrize("every", [12, 40])
def test_little_that_fills_below_much_garbage(every: int) -> None:
    """A full collection that finds a little more than the first one confirms no growth by garbage."""
    alive = [10.0 + 2 * min(i / 3, 1) for i in range(100)]
    live = [10 + 1.0 * (i % every) if i % every else a for i, a in enumerate(alive)]
    for count in range(3, len(live) + 1):
        assert heap(live[:count], full=tuple(range(0, count, every))).verdict is not Verdict.LEAK, count


@pytest.mark.parametrize("leaks", [False, True])
def test_a_collector_that_tolerates_garbage(leaks: bool) -> None:
    """The certain minimum after one full collection is not the maximum after another."""
    live = [100 + (5.0 if leaks else 0.2) * i for i in range(60)]
    found = heap(live, full=tuple(range(0, 60, 10)), tolerated=0.2)
    assert found.verdict is (Verdict.LEAK if leaks else Verdict.GROWING)


def test_too_few_collections() -> None:
    """Two points make no trend."""
    assert heap([10, 20], full=(1,), every_s=30).verdict is Verdict.UNKNOWN
    assert heap([10, 20, 30, 40, 50], every_s=2).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("live_mib", "expected"),
    [
        ([10, 18, 14, 30, 38], Verdict.UNKNOWN),
        ([10, 18, 26, 34, 42], Verdict.UNKNOWN),
        ([10, 18, 26, 34, 42, 50, 58], Verdict.LEAK),
        ([10, 10.1, 10, 9.9, 10.1], Verdict.STEADY),
        ([10 + (i % 4) for i in range(12)], Verdict.STEADY),
    ],
)
def test_few_collections_do_not_say_that_it_stands_still(live_mib: list[float], expected: Verdict) -> None:
    """Five that rise are not growth for certain, and even less none."""
    full = tuple(range(len(live_mib)))
    assert heap(live_mib, full=full, every_s=12).verdict is expected


class TestTheProcess:
    """with_managed_heap."""

    NO_SITES = FoundGrowth(0, 0.0, 0.0)

    @staticmethod
    def growing(rate: float):
        times_s = np.arange(0, 300, 5.0)
        return classify_process(times_s, 1e8 + rate * times_s, TestTheProcess.NO_SITES, ())

    def test_a_heap_that_was_not_collected(self) -> None:
        """The memory of a healthy service grows until its first collection."""
        verdict = self.growing(1e6)
        assert verdict.verdict is Verdict.GROWING
        found = with_managed_heap(verdict, heap([]), 0.98e6, self.NO_SITES)
        assert (found.verdict, found.leak_bytes_per_s) == (Verdict.UNKNOWN, 0.0)
        assert "not been collected yet" in found.reason

    def test_a_heap_that_was_committed_before(self) -> None:
        """No call site commits it any more (-Xms as large as -Xmx): it explains its own growth."""
        growing = heap([10 + 2.0 * i for i in range(60)])
        found = with_managed_heap(self.growing(0.25 * MIB), growing, 0.0, self.NO_SITES)
        assert (found.verdict, found.reason) == (Verdict.GROWING, growing.reason)
        assert found.explained_share == pytest.approx(0.8, rel=0.02)
        # a third of the growth explains nothing
        found = with_managed_heap(self.growing(0.6 * MIB), growing, 0.0, self.NO_SITES)
        assert "outside the call sites that leak or grow" in found.reason

    def test_a_heap_that_leaks(self) -> None:
        leaking = heap([10 + 2.0 * i for i in range(12)], full=(5, 11))
        found = with_managed_heap(self.growing(0.25 * MIB), leaking, 0.2 * MIB, self.NO_SITES)
        assert (found.verdict, found.reason) == (Verdict.LEAK, leaking.reason)
        assert found.leak_bytes_per_s == pytest.approx(0.2 * MIB, rel=0.01)
        assert found.explained_share == pytest.approx(0.8, rel=0.02)

    @pytest.mark.parametrize(
        ("limit_mib", "kind", "seconds"),
        [(64, "managed-heap", 160), (1_024, "host", 400), (8, "managed-heap", 0), (None, "host", 400)],
    )
    def test_which_limit_a_leak_reaches_first(self, limit_mib: int | None, kind: str, seconds: float) -> None:
        """32 MiB are alive, of 64; 100 MiB of the machine are free. It leaks 0.2 MiB/s of 0.25 in all."""
        times_s = np.arange(0, 300, 5.0)
        host = MemoryLimit(MemoryLimitKind.HOST, 200 * MIB, 100 * MIB)
        verdict = classify_process(times_s, 1e8 + 0.25 * MIB * times_s, self.NO_SITES, (host,))
        leaking = heap([10 + 2.0 * i for i in range(12)], full=(5, 11), limit_mib=limit_mib)
        found = with_managed_heap(verdict, leaking, 0.2 * MIB, self.NO_SITES)
        assert found.limit is not None
        assert (found.limit.kind, found.limit_reached_s) == (kind, pytest.approx(seconds, rel=0.03))

    @pytest.mark.parametrize("limit_mib", [256, None])
    def test_a_limited_heap_uses_up_no_machine(self, limit_mib: int | None) -> None:
        """It grows between two full collections, not beyond its own limit; that is shown without a time."""
        times_s = np.arange(0, 300, 5.0)
        host = MemoryLimit(MemoryLimitKind.HOST, 20_000 * MIB, 100 * MIB)
        verdict = classify_process(times_s, 1e8 + 0.25 * MIB * times_s, self.NO_SITES, (host,))
        growing = heap([10 + 2.0 * i for i in range(60)], limit_mib=limit_mib)
        found = with_managed_heap(verdict, growing, 0.2 * MIB, self.NO_SITES)
        assert found.verdict is Verdict.GROWING
        assert growing.live_bytes is not None
        own = MemoryLimit(MemoryLimitKind.MANAGED_HEAP, 256 * MIB, growing.live_bytes)
        assert found.limit == (own if limit_mib else host)
        assert (found.limit_reached_s is None) is (limit_mib is not None)

    def test_a_heap_that_is_steady_reaches_no_limit(self) -> None:
        """Only its commits grow, and do not continue."""
        times_s = np.arange(0, 300, 5.0)
        host = MemoryLimit(MemoryLimitKind.HOST, 200 * MIB, 100 * MIB)
        verdict = classify_process(times_s, 1e8 + 0.25 * MIB * times_s, self.NO_SITES, (host,))
        assert verdict.limit_reached_s is not None
        steady = heap([34.0 + 0.1 * (i % 3) for i in range(60)], full=(0, 59))
        found = with_managed_heap(verdict, steady, 0.25 * MIB, self.NO_SITES)
        assert (found.verdict, found.limit, found.limit_reached_s) == (Verdict.STEADY, None, None)

    def test_other_memory_that_grows(self) -> None:
        """A heap that does not grow explains no other memory."""
        verdict = self.growing(1e6)
        steady = heap([34.0 + 0.1 * (i % 3) for i in range(60)], full=(0, 59))
        assert with_managed_heap(verdict, steady, 1e4, self.NO_SITES).verdict is Verdict.GROWING
        sites = FoundGrowth(0, 0.0, 0.9e6)
        assert with_managed_heap(verdict, heap([]), 1e4, sites).verdict is Verdict.GROWING

    def test_a_heap_that_grows_within_its_memory(self) -> None:
        """The process does not grow: what is said of it names the heap, and the heap's limit."""
        times_s = np.arange(0, 300, 5.0)
        host = MemoryLimit(MemoryLimitKind.HOST, 20_000 * MIB, 100 * MIB)
        verdict = classify_process(times_s, np.full(len(times_s), 1e8), self.NO_SITES, (host,))
        growing = heap([10 + 2.0 * i for i in range(60)], limit_mib=256)
        found = with_managed_heap(verdict, growing, 0.0, self.NO_SITES)
        assert found.verdict is Verdict.STEADY
        assert found.reason == f"{verdict.reason}; {growing.reason}"
        assert found.limit is not None
        assert (found.limit.kind, found.limit.limit_bytes) == (MemoryLimitKind.MANAGED_HEAP, 256 * MIB)
        assert found.limit_reached_s is None

    def test_a_native_leak(self) -> None:
        """It is one, whatever the heap does."""
        times_s = np.arange(0, 300, 5.0)
        leaks = FoundGrowth(1, 1e6, 0.0)
        verdict = classify_process(times_s, 1e8 + 1e6 * times_s, leaks, ())
        found = with_managed_heap(verdict, heap([]), 0.0, leaks)
        assert (found.verdict, found.leak_bytes_per_s) == (Verdict.LEAK, verdict.leak_bytes_per_s)
