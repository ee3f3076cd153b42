"""A saved history judged again: the same verdicts as the daemon's, from a file.

So a verdict that is wrong can be sent in as a file, and become a test.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.report import SiteReport
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict, Verdict
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.process_verdict import FoundGrowth, classify_process
from bpfleakd.verdicts.site_histories import SiteHistories
from bpfleakd.verdicts.site_verdict import Context, classify_sites

__all__ = ["STORED_VERSION", "classified", "stored_sites"]

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


def stored_sites(
    histories: SiteHistories | None,
    places: NDArray[np.intp],
    sites: Sequence[tuple[int, SiteReport]],
    suppressed: Container[int],
) -> tuple[StoredSite, ...]:
    """What is saved of sites with their rows: each with its column, of these places in the histories."""

    def figures(column: NDArray[Any] | None, place: int) -> tuple[Any, ...]:
        return () if column is None else tuple(column[:, place].tolist())

    stored = []
    for place, (row, site) in zip(places.tolist(), sites, strict=True):
        assert histories is not None
        stored.append(
            StoredSite(
                site=site.site,
                kind=site.kind,
                function=site.function,
                module=(site.module or "").rpartition("/")[2] or None,
                live_bytes=site.live_bytes,
                live_count=site.live_count,
                low_bytes=figures(histories.low_bytes, place),
                low_count=figures(histories.low_count, place),
                born_count=figures(histories.born_count, place),
                survivors_count=figures(histories.survivors_count, place),
                survivors_bytes=figures(histories.survivors_bytes, place),
                weight=float(histories.weight[place]) if histories.weight is not None else 1.0,
                suppressed=row in suppressed,
            )
        )
    return tuple(stored)


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
