"""Merges call sites with the same stack at different addresses.

A library that is loaded twice, or a method that a JIT compiled again, gives a stack new addresses and the
same fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypeVar

from msgspec.structs import replace

from bpfleakd.model.report import SiteReport
from bpfleakd.model.site import ThreadShare
from bpfleakd.model.verdict import VERDICTS, Verdict, churn_words
from bpfleakd.table.estimates import stderr_of_sum

K = TypeVar("K")
T = TypeVar("T")
_OF_A_PART = " (of a part of its blocks)"


def merged(items: Iterable[T], key: Callable[[T], K], add: Callable[[T, T], T]) -> list[T]:
    """Items with the same key merged by adding the later to the earlier, in the order of their first."""
    found: dict[K, T] = {}
    for item in items:
        known = found.get(key(item))
        found[key(item)] = item if known is None else add(known, item)
    return list(found.values())


def merged_sites(sites: Iterable[SiteReport]) -> list[SiteReport]:
    """Sites with the same fingerprint merged, in the order of their first."""
    return merged(sites, attrgetter("site"), _sum)


def _sum(one: SiteReport, other: SiteReport) -> SiteReport:
    worst = min(one, other, key=lambda site: VERDICTS.index(site.verdict))
    return replace(
        one,
        verdict=worst.verdict,
        confidence=worst.confidence,
        reason=_reason_of_sum(one, other, worst),
        leak_bytes_per_s=one.leak_bytes_per_s + other.leak_bytes_per_s,
        scanned_age_s=_oldest(one.scanned_age_s, other.scanned_age_s),
        reachable=one.reachable if one.reachable == other.reachable else None,
        live_bytes=one.live_bytes + other.live_bytes,
        live_count=one.live_count + other.live_count,
        allocated_bytes=one.allocated_bytes + other.allocated_bytes,
        allocated_count=one.allocated_count + other.allocated_count,
        growth_bytes_per_s=one.growth_bytes_per_s + other.growth_bytes_per_s,
        oldest_age_s=_oldest(one.oldest_age_s, other.oldest_age_s),
        threads=_summed_threads((*one.threads, *other.threads)),
        temporary_count=_summed_counts(one.temporary_count, other.temporary_count),
        # An upper bound: their peaks may have been at different times.
        peak_live_bytes=one.peak_live_bytes + other.peak_live_bytes,
        live_bytes_stderr=stderr_of_sum((one.live_bytes_stderr, other.live_bytes_stderr)),
        live_count_stderr=stderr_of_sum((one.live_count_stderr, other.live_count_stderr)),
        types=one.types or other.types,
    )


def _reason_of_sum(one: SiteReport, other: SiteReport, worst: SiteReport) -> str:
    """A reason that is true of both: it limits the statements about one of them to a part."""
    counts = one.live_count + other.live_count, one.allocated_count + other.allocated_count
    of_counters = worst.reason == churn_words(worst.live_count, worst.allocated_count)
    if one.reason == other.reason and not of_counters:
        return worst.reason
    if worst.verdict is Verdict.CHURN and counts[1] > counts[0]:
        return churn_words(*counts)
    return worst.reason if worst.reason.endswith(_OF_A_PART) else worst.reason + _OF_A_PART


def _oldest(*ages_s: float | None) -> float | None:
    return max((age_s for age_s in ages_s if age_s is not None), default=None)


def _summed_counts(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _summed_threads(shares: Iterable[ThreadShare]) -> tuple[ThreadShare, ...]:
    threads = merged(shares, attrgetter("tid"), _sum_of_shares)
    return tuple(sorted(threads, key=lambda share: (-share.live_bytes, share.tid)))


def _sum_of_shares(one: ThreadShare, other: ThreadShare) -> ThreadShare:
    return replace(
        other, live_bytes=one.live_bytes + other.live_bytes, live_count=one.live_count + other.live_count
    )
