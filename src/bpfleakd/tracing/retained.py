"""Memory that survives collections, as call sites of kind `managed` and by type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from bpfleakd.analysis.blame import blamed_frame, calling_frame
from bpfleakd.analysis.fingerprint import fingerprint
from bpfleakd.analysis.merging import merged_sites
from bpfleakd.model.code.stack import RawStack, Stack, StackEnd
from bpfleakd.model.report import SiteReport
from bpfleakd.model.runtimes.managed import ManagedHeap, TypeFigures
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import Verdict
from bpfleakd.runtimes.runtime import Retained
from bpfleakd.symbols.dotnet_names import type_name
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.units import human_bytes, human_duration

# In a leaking heap, a function that retains this share of the growth leaks.
_LEAKS_SHARE = 0.1
# With fewer samples, no function is blamed.
_SAMPLES_MIN = 5
_CONFIDENCE_MAX = 0.95
_POINTER_BYTES = 8


def fitted(retained: Sequence[Retained], heap: ManagedHeap | None) -> Sequence[Retained]:
    """Samples scaled to the heap's own measurement: neither more bytes than it holds, nor more growth.

    A runtime takes a sample when the part of the heap that a thread fills is full. So large objects are
    sampled more often than their bytes justify: .NET counts arrays of 3.6 kB among small objects for half as
    much again. Collections measure all live memory.
    """
    if heap is None or heap.is_read:
        return retained
    fits = _share(heap.live_bytes, sum(one.live_bytes for one in retained))
    # Before a verdict, growth of 0 means unknown.
    is_known = heap.verdict is not Verdict.UNKNOWN or heap.growth_bytes_per_s > 0
    growth = heap.growth_bytes_per_s if is_known else None
    grows = _share(growth, sum(one.growth_bytes_per_s for one in retained))
    if fits == 1 and grows == 1:
        return retained
    return [
        replace(
            one,
            live_bytes=int(fits * one.live_bytes),
            growth_bytes_per_s=grows * one.growth_bytes_per_s,
        )
        for one in retained
    ]


def _share(measured: float | None, estimated: float) -> float:
    """The factor that reduces an estimate to the measured figure; 1 if that is unknown or larger."""
    return 1.0 if measured is None or estimated <= measured else measured / estimated


def retained_sites(
    retained: Sequence[Retained],
    heap: ManagedHeap,
    symbolizer: Symbolizer,
    limit: int | None,
    arenas: Sequence[SiteReport] = (),
) -> list[SiteReport]:
    """The call sites that allocate retained memory, those with most bytes first.

    If no function is known to make a container grow, the largest of `arenas` is blamed. In a leaking heap, a
    function leaks if it allocates a large part of the retained memory; it is `growing` until that is proven.
    """
    total = sum(one.growth_bytes_per_s for one in retained) or 1.0
    kept = retained[:limit]
    stacks = symbolizer.symbolize([one.raw_stack or _raw(one.stack) for one in kept])
    # One stack may allocate several types; those with most bytes come first.
    arena = max(arenas, key=lambda site: site.live_bytes, default=None)
    sites = [
        _site(one, stack if arena is None or one.raw_stack or one.stack else _stack_of(arena), heap)
        for one, stack in zip(kept, stacks, strict=True)
    ]
    doubt = "" if all(one.is_proven for one in kept) else ", with no full one that confirms it yet"
    unbounded = {site.site for site, one in zip(sites, kept, strict=True) if one.bound is None}
    age_s = _age_s(kept)
    return [
        _aged(_judged(site, heap, site.growth_bytes_per_s / total, doubt, site.site in unbounded), age_s)
        for site in merged_sites(sites)
    ]


def retained_types(retained: Sequence[Retained]) -> tuple[TypeFigures, ...]:
    """By type, most bytes first."""
    live_bytes: dict[str, int] = defaultdict(int)
    growth: dict[str, float] = defaultdict(float)
    for one in retained:
        live_bytes[one.type] += one.live_bytes
        growth[one.type] += one.growth_bytes_per_s
    ordered = sorted(live_bytes, key=lambda name: (-live_bytes[name], name))
    is_proven, age_s = all(one.is_proven for one in retained), _age_s(retained)
    return tuple(
        TypeFigures(type_name(name), live_bytes[name], None, round(growth[name], 1), is_proven, age_s)
        for name in ordered
    )


def _age_s(retained: Sequence[Retained]) -> float:
    return round(max((one.age_s for one in retained), default=0.0), 1)


def _raw(addresses: tuple[int, ...]) -> RawStack:
    """The runtime reports return addresses, also for the innermost method."""
    if not addresses:
        return RawStack((), StackEnd.LOST)
    return RawStack((addresses[0] - 1, *addresses[1:]), StackEnd.BOTTOM)


def _site(one: Retained, stack: Stack, heap: ManagedHeap) -> SiteReport:
    blamed = blamed_frame(stack.frames)
    return SiteReport(
        site=fingerprint(AllocationKind.MANAGED, stack),
        kind=AllocationKind.MANAGED,
        function=blamed.function if blamed else None,
        module=blamed.module if blamed else None,
        location=blamed.location if blamed else None,
        live_bytes=one.live_bytes,
        live_count=one.samples,
        allocated_bytes=one.live_bytes,
        allocated_count=one.samples,
        growth_bytes_per_s=one.growth_bytes_per_s,
        oldest_age_s=None,
        threads=(),
        stack=stack.frames,
        truncated=stack.truncated,
        temporary_count=None,
        peak_live_bytes=one.live_bytes,
        verdict=Verdict.UNKNOWN,
        confidence=0.0,
        reason=_holds(one),
        leak_bytes_per_s=0.0,
        reachable=None,
        type=_type_of(one),
        called_by=calling_frame(stack.frames, blamed),
    )


def _stack_of(site: SiteReport) -> Stack:
    return Stack(site.stack, (None,) * len(site.stack), None)


def _type_of(one: Retained) -> str:
    if one.growth_per_s is None:
        return type_name(one.type)
    return f"{one.type} +{one.growth_per_s:,.0f}/s"


def _holds(one: Retained) -> str:
    """What holds the objects; "" if only samples show it."""
    if one.container is None:
        return ""
    article = "an" if one.container.startswith("lru_cache") else "a"
    who = f"{article} {one.container} gains" if one.container_count == 1 else f"{one.container} gain"
    words = f"{who} {_type_of(one)}"
    if one.bound is not None:
        words += f", up to its bound of {one.bound:,}"
    return words if one.raw_stack else f"{words}, by an unknown function: this one used up memory for objects"


def _aged(site: SiteReport, age_s: float) -> SiteReport:
    if not age_s:
        return site
    return replace(site, reason=f"{site.reason}; sampled until {human_duration(age_s)} ago")


def _judged(
    site: SiteReport, heap: ManagedHeap, share: float, doubt: str, is_unbounded: bool
) -> SiteReport:
    """The verdict on a site with this share of the growth; `doubt`: why it is not proven, "" if it is."""
    if heap.verdict not in (Verdict.LEAK, Verdict.GROWING):
        return replace(site, verdict=heap.verdict, reason=heap.reason)
    stays = site.reason or (
        f"{human_bytes(site.live_bytes)} of {site.type} survived collections, {share:.0%} of what stays"
    )
    if share < _LEAKS_SHARE or site.live_count < _SAMPLES_MIN:
        return replace(site, verdict=Verdict.STEADY, reason=stays)
    stays += doubt
    # Thousands of samples do not make a minute of the heap's growth certain.
    confidence = min(_CONFIDENCE_MAX, 1 - 1 / site.live_count**0.5) * heap.growth_confidence
    rate = round(share * heap.growth_bytes_per_s, 1)
    return replace(
        site,
        verdict=Verdict.GROWING if doubt or not is_unbounded else heap.verdict,
        confidence=round(confidence, 2),
        reason=f"{stays}; {heap.reason}",
        leak_bytes_per_s=rate,
        **_with_what_they_hold(site, heap, rate),
    )


def _with_what_they_hold(site: SiteReport, heap: ManagedHeap, rate: float) -> dict[str, Any]:
    """The figures of container values, which hold others in turn: the heap's growth with each."""
    values_per_s = site.growth_bytes_per_s / _POINTER_BYTES
    if not heap.is_read or values_per_s <= 0:
        return {}
    live_bytes = min(round(site.live_count * rate / values_per_s), heap.live_bytes or 0)
    return {"live_bytes": live_bytes, "growth_bytes_per_s": rate}
