"""Call sites that are one: the same stack, at other addresses.

A library that is loaded twice, or a method that a JIT compiled again, gives a stack new addresses and the
same fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bpfleakd.model import SiteReport, ThreadShare

__all__ = ["merged_sites"]


def merged_sites(sites: Iterable[SiteReport]) -> list[SiteReport]:
    """Sites with the same fingerprint as one, in the order of their first."""
    merged: dict[str, SiteReport] = {}
    for site in sites:
        known = merged.get(site.site)
        merged[site.site] = _sum(known, site) if known else site
    return list(merged.values())


def _sum(one: SiteReport, other: SiteReport) -> SiteReport:
    ages = [age for age in (one.oldest_age_s, other.oldest_age_s) if age is not None]
    return replace(
        one,
        live_bytes=one.live_bytes + other.live_bytes,
        live_count=one.live_count + other.live_count,
        allocated_bytes=one.allocated_bytes + other.allocated_bytes,
        allocated_count=one.allocated_count + other.allocated_count,
        growth_bytes_per_s=one.growth_bytes_per_s + other.growth_bytes_per_s,
        oldest_age_s=max(ages) if ages else None,
        threads=_summed_threads((*one.threads, *other.threads)),
    )


def _summed_threads(shares: Iterable[ThreadShare]) -> tuple[ThreadShare, ...]:
    threads: dict[int, ThreadShare] = {}
    for share in shares:
        known = threads.get(share.tid)
        threads[share.tid] = (
            replace(share, live_bytes=share.live_bytes + known.live_bytes) if known else share
        )
    return tuple(sorted(threads.values(), key=lambda share: (-share.live_bytes, share.tid)))
