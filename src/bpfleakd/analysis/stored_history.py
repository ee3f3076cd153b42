"""A saved history judged again: the same verdicts as the daemon's, from a file.

So a verdict that is wrong can be sent in as a file, and become a test.
"""

from __future__ import annotations

import numpy as np

from bpfleakd.analysis.persistence import SiteHistories, persistence_of
from bpfleakd.analysis.process_verdict import FoundGrowth, classify_process
from bpfleakd.analysis.verdict import Context, classify_sites
from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict, Verdict

__all__ = ["STORED_VERSION", "classified"]

STORED_VERSION = 1


def classified(history: StoredHistory) -> tuple[ProcessVerdict, list[tuple[StoredSite, SiteVerdict]]]:
    """The verdicts on a process and on its sites, in their order. ValueError if columns differ in length."""
    bins = len(history.ends_s)
    for site in history.sites:
        if any(len(column) != bins for column in _columns(site)):
            raise ValueError(f"call site {site.site} has not {bins} figures in each column")
    verdicts: list[SiteVerdict] = []
    if bins and history.sites:
        columns = (
            np.array(column, np.float64).T for column in zip(*map(_columns, history.sites), strict=True)
        )
        low_bytes, low_count, born_count, survivors_count, survivors_bytes = columns
        measured = persistence_of(
            SiteHistories(
                np.array(history.ends_s, np.float64),
                low_bytes,
                low_count,
                born_count,
                np.array([site.live_bytes for site in history.sites], np.float64),
                np.array([site.live_count for site in history.sites], np.float64),
                survivors_count,
                survivors_bytes,
                np.array([site.weight for site in history.sites], np.float64),
                np.array([site.kind is AllocationKind.HEAP for site in history.sites]),
                np.array(history.intervals_bytes, np.float64) if history.intervals_bytes else None,
            ),
            history.leak_after_s,
        )
        context = Context(
            history.replaced_count, history.lost_frees, history.lost_blocks, unread_s=history.unread_s
        )
        classification = classify_sites(measured, context)
        verdicts = [classification.of(row) for row in range(len(history.sites))]
    sites = list(zip(history.sites, verdicts, strict=True)) if verdicts else []
    return _of_process(history, sites), sites


def _of_process(history: StoredHistory, sites: list[tuple[StoredSite, SiteVerdict]]) -> ProcessVerdict:
    memory = [(site, verdict) for site, verdict in sites if site.kind is not AllocationKind.FILE]
    kept = [verdict for site, verdict in memory if not site.suppressed]
    leaks = [verdict.leak_bytes_per_s for verdict in kept if verdict.verdict is Verdict.LEAK]
    suppressed = [verdict.leak_bytes_per_s for site, verdict in memory if site.suppressed]
    growing = [verdict.leak_bytes_per_s for verdict in kept if verdict.verdict is Verdict.GROWING]
    return classify_process(
        np.array(history.memory_s, np.float64),
        np.array(history.memory_bytes, np.float64),
        FoundGrowth(len(leaks), sum(leaks), sum(growing), sum(suppressed)),
        history.limits,
    )


def _columns(site: StoredSite) -> tuple[tuple[float, ...], ...]:
    return (
        site.low_bytes,
        site.low_count,
        site.born_count,
        site.survivors_count,
        site.survivors_bytes,
    )
