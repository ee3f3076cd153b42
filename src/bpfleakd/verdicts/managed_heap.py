"""Whether a managed heap leaks, judged by what its collections leave alive.

A garbage-collected heap grows by everything allocated since the last collection, so its size proves nothing.
What a collection leaves does:

- A full collection shows exactly what was alive.
- A collection of young generations shows an upper bound: the old ones may hold garbage.

So memory has certainly leaked if a full collection found more alive than there can have been at an earlier
one, and the difference is a large part of what the trend predicts: memory that fills up at the beginning, or
between two full collections, is not a leak. Growth seen only by collections of young generations may be
garbage that was promoted: it is not a leak until a full collection confirms it. Without any collection the
verdict is unknown.

Where full collections are frequent (V8), the condition is stricter: the earlier one is from the third quarter
of the time before, since a program fills its caches in the first half, and the difference is at least half of
what the trend predicts.

A verdict of leak stands until a full collection refutes it. One that tolerates garbage (G1) confirms a leak
by the least that it left alive, and refutes one by the most.

Growth that slows down is that of a cache, not a leak; neither is growth that has ended (`slowing`). Near the
limit of the heap, however, a leak slows down as well: the runtime collects all the time, or refuses memory.

Method: growth is the trend of the minima in up to twelve equal parts of the time, with the same estimate and
test as in `process_verdict`, which gives the reasons.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.units import human_rate
from bpfleakd.verdicts.process_verdict import FoundGrowth, reached_s
from bpfleakd.verdicts.site_verdict import leak_confidence
from bpfleakd.verdicts.slowing import Course, course_of
from bpfleakd.verdicts.trend import Trend, trend

_PARTS = 12
_PARTS_MIN = 5
_P_MAX = 0.02
# Less than that may be a buffer that was created later.
GAINED_MIN_BYTES = 1 << 20
_GAINED_MIN_SHARE = 0.02
# The range of earlier collections to compare a full collection with, as parts of the time before it.
_EARLIER = (0.0, 0.6)
_EARLIER_IF_OFTEN = (0.5, 0.75)
# Least leaked share of what the trend predicts. It is lower for rare full collections, since garbage adds to
# the trend, and a collector that tolerates garbage (G1) shows less than what is alive.
_OF_TREND_MIN, _OF_TREND_MIN_IF_OFTEN = 0.25, 0.5
# How long growth must have lasted if full collections are frequent, in units of `leak_after_s`.
_LASTS_MIN = 1.25
# Above this share of its limit, the runtime itself may slow growth down. With OpenJDK 17 (G1) at 95 % of the
# limit, a steady leak was mistaken for a cache until the JVM failed.
_NEAR_LIMIT_SHARE = 0.8
# Commits of the heap that are at least this share of a process' growth explain it.
_EXPLAINS_SHARE = 0.5
_UNCOLLECTED = ", and it may be garbage in cycles until the next full collection"
# How many upper bounds the shown minimum is taken from.
_BOUNDS = 3

_Row = NDArray[np.float64]


class Collections(Struct, frozen=True):
    """Collections of one process.

    For each collection: seconds since the attach, the upper bound of live bytes, whether it covered all
    objects, and the exact live bytes if it did.
    """

    times_s: NDArray[np.float64]
    live_bytes: NDArray[np.float64]
    is_full: NDArray[np.bool_]
    least_bytes: NDArray[np.float64]


def classify_managed_heap(
    runtime: str,
    collections: Collections,
    watched_s: float,
    leak_after_s: float,
    *,
    is_read: bool = False,
    often_full: bool = False,
    was_leak: bool = False,
    limit_bytes: int | None = None,
) -> ManagedHeap:
    """Return the verdict on a heap watched for `watched_s` so far.

    `is_read`: the figures are readings, each of which shows exactly what was in use; of those that are not
    full, much may be garbage in cycles. `often_full`: full collections are frequent. `was_leak`: the last
    verdict was leak. `limit_bytes`: the size beyond which the runtime refuses memory; None if unknown.
    """
    count, full = len(collections.times_s), int(collections.is_full.sum())
    live_bytes = _live_bytes(collections, is_read) if count else None
    found = _trend(collections) if count else None
    grows = found is not None and _grows(found, collections)
    near_limit = bool(live_bytes and limit_bytes and live_bytes >= _NEAR_LIMIT_SHARE * limit_bytes)
    course = _course(collections) if grows and not (near_limit and was_leak) else Course.EVEN
    grows = grows and course is not Course.ENDED
    rate = found.slope_per_s if grows and found is not None else 0.0
    looks = _counted(count, "reading" if is_read else "collection")
    what = "the object heap" if is_read else "the live heap"
    if not count:
        seen = "read" if is_read else "collected"
        verdict, reason = Verdict.UNKNOWN, f"the managed heap has not been {seen} yet"
    elif watched_s < leak_after_s or found is None or (not grows and _may_grow(found, collections)):
        verdict, reason = Verdict.UNKNOWN, f"{looks} of the managed heap: too few to tell"
    elif course is Course.SLOWS_DOWN:
        why = "near its limit" if near_limit else "as a cache does"
        slows = f"{what} grows {human_rate(rate)}, ever more slowly, {why} ({looks})"
        verdict, reason = Verdict.GROWING, slows
    elif grows and _is_confirmed(collections, often_full, was_leak, rate, leak_after_s):
        confirmed = "" if is_read else f", {full:,} of them full"
        verdict, reason = Verdict.LEAK, f"{what} grows {human_rate(rate)} ({looks}{confirmed})"
    elif grows:
        confirmed = _UNCOLLECTED if is_read else ", and no full one has confirmed it yet"
        verdict, reason = Verdict.GROWING, f"{what} grows {human_rate(rate)} ({looks}{confirmed})"
    else:
        any_more = " any more" * (course is Course.ENDED)
        verdict, reason = Verdict.STEADY, f"{what} does not grow{any_more} ({looks})"
    [confidence] = leak_confidence(np.array([max(count, 1.0)]), np.array([watched_s]), leak_after_s)
    return ManagedHeap(
        runtime,
        verdict,
        reason,
        live_bytes,
        count,
        full,
        round(rate, 1),
        is_read,
        limit_bytes=limit_bytes,
        growth_confidence=round(float(confidence), 3),
    )


def with_managed_heap(
    verdict: ProcessVerdict, heap: ManagedHeap, committed_bytes_per_s: float, found: FoundGrowth
) -> ProcessVerdict:
    """The verdict on a process with such a heap, without the call sites that commit the heap.

    `committed_bytes_per_s` is the growth of those call sites.
    """
    grows = verdict.memory_bytes_per_s if verdict.explained_share is not None else None
    share = verdict.explained_share
    if grows and share is not None:
        share = round(min(1.0, share + max(heap.growth_bytes_per_s, committed_bytes_per_s) / grows), 3)
    if heap.verdict is Verdict.LEAK:
        # Without the heap, the explained share of the growth differs.
        others = f"; {verdict.reason.partition(';')[0]}" if found.any_leaks else ""
        limit, seconds = _first_limit(verdict, heap)
        return replace(
            verdict,
            verdict=Verdict.LEAK,
            reason=heap.reason + others,
            leak_bytes_per_s=round(verdict.leak_bytes_per_s + heap.growth_bytes_per_s, 1),
            explained_share=share,
            limit=limit,
            limit_reached_s=seconds,
        )
    # Memory committed before the attach may first be touched now. A heap touches it as fast as it grows; as
    # long as the heap's verdict is unknown, that may be all of the growth.
    if heap.verdict is Verdict.UNKNOWN:
        touched = grows or 0.0
    else:
        touched = max(committed_bytes_per_s, heap.growth_bytes_per_s)
    is_its_growth = grows is not None and touched >= _EXPLAINS_SHARE * grows
    is_others = found.any_leaks > 0 or found.growing_bytes_per_s > (1 - _EXPLAINS_SHARE) * (grows or 0.0)
    if is_others and heap.verdict in (Verdict.UNKNOWN, Verdict.GROWING):
        return replace(verdict, reason=f"{verdict.reason}; {heap.reason}")
    if heap.verdict is Verdict.GROWING and not is_its_growth:
        # Within memory that the process has already: its limit is the heap's.
        limit = verdict.limit if verdict.limit_reached_s is not None else _limit_of(heap) or verdict.limit
        return replace(verdict, reason=f"{verdict.reason}; {heap.reason}", limit=limit)
    if is_others or not is_its_growth:
        return verdict
    verdict = replace(verdict, verdict=heap.verdict, reason=heap.reason, explained_share=share)
    if heap.limit_bytes is None and heap.verdict is not Verdict.STEADY:
        return verdict
    # A heap with a limit does not grow beyond it, and its next full collection may leave little: nothing is
    # foretold.
    return replace(verdict, limit=_limit_of(heap), limit_reached_s=None)


def _first_limit(verdict: ProcessVerdict, heap: ManagedHeap) -> tuple[MemoryLimit | None, float | None]:
    """The heap's limit and when it is reached, if this leak reaches it before the process' own limit."""
    limit = _limit_of(heap)
    if limit is None:
        return verdict.limit, verdict.limit_reached_s
    seconds = reached_s(limit, heap.growth_bytes_per_s)
    if seconds is None or (verdict.limit_reached_s is not None and verdict.limit_reached_s < seconds):
        return verdict.limit, verdict.limit_reached_s
    return limit, round(seconds, 1)


def _limit_of(heap: ManagedHeap) -> MemoryLimit | None:
    if heap.limit_bytes is None or heap.live_bytes is None:
        return None
    return MemoryLimit(MemoryLimitKind.MANAGED_HEAP, heap.limit_bytes, heap.live_bytes)


def _live_bytes(collections: Collections, is_read: bool) -> int:
    """The live bytes: those of a reading or a full collection, else the lowest of the last upper bounds.

    A collection of young generations may happen when these are full, at ten times what is alive.
    """
    is_exact = is_read or bool(collections.is_full[-1])
    return int(collections.live_bytes[-1 if is_exact else -_BOUNDS :].min())


def _trend(collections: Collections) -> Trend | None:
    """The trend of the minima in each part of the time; None if there are too few."""
    times_s, least_bytes = _parts(collections.times_s, collections.live_bytes)
    return trend(times_s, least_bytes) if len(times_s) >= _PARTS_MIN else None


def _parts(times_s: _Row, live_bytes: _Row) -> tuple[_Row, _Row]:
    """The start of each part of the time, and the least figure in it."""
    edges = np.searchsorted(times_s, np.linspace(times_s[0], times_s[-1], _PARTS + 1)[:-1])
    edges = np.unique(edges[edges < len(times_s)])
    if len(times_s) <= _PARTS:
        edges = np.arange(len(times_s))
    return times_s[edges], np.minimum.reduceat(live_bytes, edges)


def _course(collections: Collections) -> Course:
    times_s, live_bytes = collections.times_s, collections.live_bytes
    half = int(np.searchsorted(times_s, (times_s[0] + times_s[-1]) / 2))
    return course_of(_parts(times_s, live_bytes), _parts(times_s[half:], live_bytes[half:]))


def _grows(found: Trend, collections: Collections) -> bool:
    gained_bytes = _gained_bytes(found, collections)
    return found.p_increase < _P_MAX and found.slope_low > 0 and gained_bytes > GAINED_MIN_BYTES


def _may_grow(found: Trend, collections: Collections) -> bool:
    """Whether there are too few collections for a rise that the test is not certain of.

    It is not certain of five rising minima, nor of ten of which the last five happen not to rise.
    """
    return len(collections.times_s) < _PARTS and _gained_bytes(found, collections) > GAINED_MIN_BYTES


def _gained_bytes(found: Trend, collections: Collections) -> float:
    return found.slope_per_s * float(collections.times_s[-1] - collections.times_s[0])


def _is_confirmed(
    collections: Collections, often_full: bool, was_leak: bool, rate: float, leak_after_s: float
) -> bool:
    """Whether the last full collection confirms growth at `rate`."""
    earlier = _EARLIER_IF_OFTEN if often_full else _EARLIER
    if was_leak:
        # One that tolerates garbage refutes it only if there cannot be more.
        return _has_survived(collections, collections.live_bytes, earlier)
    least = collections.least_bytes
    if not often_full:
        return _has_survived(collections, least, earlier, _OF_TREND_MIN * rate)
    return _has_survived(
        collections, least, earlier, _OF_TREND_MIN_IF_OFTEN * rate, _LASTS_MIN * leak_after_s
    )


def _has_survived(
    collections: Collections,
    found_bytes: _Row,
    earlier_shares: tuple[float, float],
    least_bytes_per_s: float = 0.0,
    least_span_s: float = 0.0,
) -> bool:
    """Whether the last full collection found more alive, of `found_bytes`, than there can have been before.

    "Before" are the collections within `earlier_shares` of the time until then, which must last
    `least_span_s`.
    """
    full = np.flatnonzero(collections.is_full)
    if not len(full):
        return False
    last, times_s = full[-1], collections.times_s[: full[-1]]
    if not len(times_s) or collections.times_s[last] - times_s[0] < least_span_s:
        return False
    from_s, until_s = (
        times_s[0] + share * (collections.times_s[last] - times_s[0]) for share in earlier_shares
    )
    earlier = np.flatnonzero((times_s >= from_s) & (times_s <= until_s))
    if not len(earlier):
        return False
    least = earlier[np.argmin(collections.live_bytes[earlier])]
    least_bytes = float(collections.live_bytes[least])
    gained_bytes = float(found_bytes[last]) - least_bytes
    needed_bytes = least_bytes_per_s * float(collections.times_s[last] - times_s[least])
    return gained_bytes > max(GAINED_MIN_BYTES, _GAINED_MIN_SHARE * least_bytes, needed_bytes)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
