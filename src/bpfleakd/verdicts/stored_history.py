"""Verdicts on a saved history: the same as the daemon's, from a file.

A user can send in a wrong verdict as a file, which then becomes a test.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.report import SiteReport
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict, Verdict
from bpfleakd.verdicts.collected import as_of_collections
from bpfleakd.verdicts.envelope import Matrix, Row
from bpfleakd.verdicts.full_table import until_full
from bpfleakd.verdicts.measured_sites import MeasuredSites
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.persistence import Persistence
from bpfleakd.verdicts.process_verdict import FoundGrowth, classify_process
from bpfleakd.verdicts.site_histories import SiteHistories
from bpfleakd.verdicts.site_verdict import Context, classify_sites

STORED_VERSION = 1

_Columns: TypeAlias = tuple[tuple[float, ...], ...]


def classified(history: StoredHistory) -> tuple[ProcessVerdict, list[tuple[StoredSite, SiteVerdict]]]:
    """The verdicts on a process and on its sites, in their order.

    Raises ValueError if columns differ in length.
    """
    bins = len(history.ends_s)
    for of_bins in (history.intervals_bytes, history.firsts_s, history.allocated_count):
        if len(of_bins) not in (0, bins):
            raise ValueError(f"a column of the process has {len(of_bins)} figures for {bins} bins")
    for site in history.sites:
        if any(len(column) != bins for column in (*_columns(site), *_survivors(site))):
            raise ValueError(f"call site {site.site} has not {bins} figures in each column")
    verdicts: list[SiteVerdict] = []
    if bins and history.sites:
        context = Context(
            replaced_count=history.replaced_count,
            growth_variance=history.growth_variance,
            churn_variance=history.churn_variance,
            lost_frees=history.lost_frees,
            lost_blocks=history.lost_blocks,
            unread_s=history.unread_s,
            full_s=history.full_s,
            full_of=history.full_of,
        )
        classification = classify_sites(_measured(history), context)
        verdicts = [classification.of(row) for row in range(len(history.sites))]
    sites = list(zip(history.sites, verdicts, strict=True)) if verdicts else []
    return _of_process(history, sites), sites


def _measured(history: StoredHistory) -> Persistence:
    """Measurements of all sites: those with blocks counted by age and the others are measured apart."""
    measured, now_s = MeasuredSites(), history.ends_s[-1]
    rows = np.arange(len(history.sites))
    measured.due(rows, np.zeros(len(rows)), now_s)
    counted = np.array([bool(_survivors(site)) for site in history.sites])
    collected = np.array([site.kind is AllocationKind.GO_HEAP for site in history.sites])
    heap = np.array([site.kind is AllocationKind.HEAP for site in history.sites])
    parts = (
        rows[counted & heap],
        rows[counted & ~heap],
        rows[~counted & ~collected & heap],
        rows[~counted & ~collected & ~heap],
        rows[~counted & collected],
    )
    for part in parts:
        if len(part):
            histories = _histories(history, [history.sites[row] for row in part.tolist()])
            if collected[part].all() and history.collected_s is not None:
                histories = as_of_collections(histories, np.array(history.collected_s))
            if heap[part].all() and history.full_s:
                histories = until_full(histories, now_s - history.full_s)
            measured.keep(part, persistence_of(histories, history.leak_after_s), now_s)
    return measured.of(rows, now_s, history.leak_after_s)


def _histories(history: StoredHistory, sites: Sequence[StoredSite]) -> SiteHistories:
    """The histories of sites that all have survivors, or all have none."""

    def matrices(columns_of: Callable[[StoredSite], _Columns]) -> Iterator[Matrix]:
        return (np.array(column, np.float64).T for column in zip(*map(columns_of, sites), strict=True))

    low_bytes, low_count, born_count = matrices(_columns)
    survivors_count, survivors_bytes = matrices(_survivors) if _survivors(sites[0]) else (None, None)
    return SiteHistories(
        np.array(history.ends_s, np.float64),
        low_bytes,
        low_count,
        born_count,
        np.array([site.live_bytes for site in sites], np.float64),
        np.array([site.live_count for site in sites], np.float64),
        survivors_count,
        survivors_bytes,
        np.array([site.weight for site in sites], np.float64),
        np.array([site.kind is AllocationKind.HEAP for site in sites]),
        _row(history.intervals_bytes),
        firsts_s=_row(history.firsts_s),
        allocated_count=_row(history.allocated_count),
    )


def _row(figures: tuple[float, ...]) -> Row | None:
    return np.array(figures, np.float64) if figures else None


def stored_sites(
    histories: SiteHistories | None,
    places: NDArray[np.intp],
    sites: Sequence[tuple[int, SiteReport]],
    suppressed: Container[int],
) -> tuple[StoredSite, ...]:
    """Sites to save: each with its columns at these places of the histories."""

    def figures(column: NDArray[Any] | None, place: int) -> tuple[Any, ...]:
        return () if column is None else tuple(column[:, place].tolist())

    stored = []
    for place, (row, site) in zip(places.tolist(), sites, strict=True):
        assert histories is not None
        counted = site.kind is not AllocationKind.GO_HEAP
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
                survivors_count=figures(histories.survivors_count if counted else None, place),
                survivors_bytes=figures(histories.survivors_bytes if counted else None, place),
                weight=float(histories.weight[place]) if histories.weight is not None else 1.0,
                suppressed=row in suppressed,
            )
        )
    return tuple(stored)


def _of_process(history: StoredHistory, sites: list[tuple[StoredSite, SiteVerdict]]) -> ProcessVerdict:
    own = (AllocationKind.FILE, AllocationKind.THREAD_STACK)
    memory = [(site, verdict) for site, verdict in sites if site.kind is not AllocationKind.FILE]
    kept = [(site.kind, verdict) for site, verdict in sites if not site.suppressed]

    def leaks_of(*kinds: AllocationKind) -> list[float]:
        leaking = [(kind, one) for kind, one in kept if one.verdict is Verdict.LEAK]
        return [one.leak_bytes_per_s for kind, one in leaking if kind in kinds]

    leaks = leaks_of(*(kind for kind in AllocationKind if kind not in own))
    suppressed = [verdict.leak_bytes_per_s for site, verdict in memory if site.suppressed]
    growing = [
        verdict.leak_bytes_per_s
        for kind, verdict in kept
        if kind is not AllocationKind.FILE and verdict.verdict is Verdict.GROWING
    ]
    mapped, stacks = map(leaks_of, own)
    return classify_process(
        np.array(history.memory_s, np.float64),
        np.array(history.memory_bytes, np.float64),
        FoundGrowth(
            len(leaks),
            sum(leaks),
            sum(growing),
            sum(suppressed),
            mapped_leaks=len(mapped),
            mapped_bytes_per_s=sum(mapped),
            stack_leaks=len(stacks),
            stack_bytes_per_s=sum(stacks),
        ),
        history.limits,
        history.ends_s[-1] - history.full_s if history.full_s and history.ends_s else None,
        history.full_of,
    )


def _columns(site: StoredSite) -> _Columns:
    return site.low_bytes, site.low_count, site.born_count


def _survivors(site: StoredSite) -> _Columns:
    """The columns of survivors; empty if they were not counted."""
    columns = site.survivors_count, site.survivors_bytes
    return columns if any(columns) else ()
