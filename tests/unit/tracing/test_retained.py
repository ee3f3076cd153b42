"""Samples of surviving objects, besides the figures of the heap itself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bpfleakd.model.code.stack import RawStack, Stack, StackEnd
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.verdict import Verdict
from bpfleakd.runtimes.runtime import Retained
from bpfleakd.tracing.retained import fitted, retained_sites, retained_types
from bpfleakd.tracing.runtimes import ProcessRuntimes

MIB = 1 << 20
SAMPLED = [
    Retained("System.Byte[]", (0x100,), 108 * MIB, 1_050, 600_000.0),
    Retained("CallbackNode", (0x200,), 12 * MIB, 90, 60_000.0),
]


class Sampling:
    """A runtime with these samples."""

    live_heap = object()

    @property
    def allocations(self) -> Sampling:
        return self

    def retained(self) -> list[Retained]:
        return SAMPLED


class NoNames:
    """Symbols of stacks that have none."""

    def symbolize(self, stacks: list[RawStack]) -> list[Stack]:
        return [Stack((), (), None) for _stack in stacks]


def a_heap(
    verdict: Verdict, live_mib: int | None, growth: float = 0.0, *, is_read: bool = False
) -> ManagedHeap:
    live_bytes = None if live_mib is None else live_mib * MIB
    return ManagedHeap(".NET", verdict, "", live_bytes, 9, 2, growth, is_read)


def test_samples_are_scaled_to_what_the_heap_holds() -> None:
    """And to its growth; the shares of the types stay the same."""
    types = retained_types(fitted(SAMPLED, a_heap(Verdict.LEAK, 60, 440_000.0)))
    assert [(one.live_bytes, one.growth_bytes_per_s) for one in types] == [
        (54 * MIB, 400_000.0),
        (6 * MIB, 40_000.0),
    ]


@pytest.mark.parametrize(
    ("heap", "growth"),
    [
        (a_heap(Verdict.STEADY, 200), 0.0),
        (a_heap(Verdict.GROWING, 200, 330_000.0), 330_000.0),
        (a_heap(Verdict.GROWING, 200, 900_000.0), 660_000.0),
        (a_heap(Verdict.UNKNOWN, 200), 660_000.0),
        (a_heap(Verdict.UNKNOWN, 200, 330_000.0), 330_000.0),
        (a_heap(Verdict.STEADY, None, is_read=True), 660_000.0),
        (None, 660_000.0),
    ],
)
def test_the_growth_of_samples_does_not_contradict_the_heap(heap: ManagedHeap | None, growth: float) -> None:
    """Nothing grows in a heap that does not grow; before a verdict, and for a heap that is read, this is
    unknown.
    """
    found = fitted(SAMPLED, heap)
    assert sum(one.growth_bytes_per_s for one in found) == pytest.approx(growth)
    assert [one.live_bytes for one in found] == [one.live_bytes for one in SAMPLED]


@pytest.mark.parametrize("confidence", [1.0, 0.8])
def test_sites_are_no_surer_than_the_growth_of_the_heap(confidence: float) -> None:
    heap = replace(a_heap(Verdict.LEAK, 120, 600_000.0), growth_confidence=confidence)
    [largest] = retained_sites(SAMPLED, heap, NoNames(), 1)  # type: ignore[arg-type]
    assert largest.verdict is Verdict.LEAK
    assert largest.confidence == pytest.approx(0.95 * confidence, abs=0.01)


def test_a_container_with_a_bound_does_not_leak() -> None:
    """It fills; unless one without a bound grows at the same place."""
    heap = a_heap(Verdict.LEAK, 120, 60_000.0, is_read=True)
    stack = RawStack((1, 2), StackEnd.BOTTOM)
    cache = Retained("bytes", (), 8_000, 1_000, 800.0, "lru_cache of 1,000", 1, 100.0, 30_000, stack)
    [site] = retained_sites([cache], heap, NoNames(), 5)  # type: ignore[arg-type]
    assert site.verdict is Verdict.GROWING
    assert site.reason == "an lru_cache of 1,000 gains bytes +100/s, up to its bound of 30,000; "
    both = [cache, replace(cache, bound=None)]
    [site] = retained_sites(both, heap, NoNames(), 5)  # type: ignore[arg-type]
    assert site.verdict is Verdict.LEAK


def test_a_heap_whose_samples_were_all_of_what_has_died() -> None:
    assert [one.live_bytes for one in fitted(SAMPLED, a_heap(Verdict.STEADY, 0))] == [0, 0]
    assert fitted([], a_heap(Verdict.STEADY, 0)) == []


def test_types_and_sites_of_a_process_are_fitted_to_its_heap() -> None:
    """Both are made of the same figures."""
    runtimes = ProcessRuntimes(None, {})  # type: ignore[arg-type]
    runtimes._runtimes.append(Sampling())  # type: ignore[arg-type]
    runtimes.heap.heap = a_heap(Verdict.STEADY, 60)
    assert [one.live_bytes for one in runtimes.retained] == [54 * MIB, 6 * MIB]
    assert [one.live_bytes for one in runtimes.types] == [54 * MIB, 6 * MIB]
    assert not any(one.growth_bytes_per_s for one in runtimes.types)
