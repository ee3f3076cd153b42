"""Verdicts on functions that several sites are charged to, from the sum of their sites."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.verdict import VERDICTS, Verdict
from bpfleakd.tracing.judging.history_source import HistorySource
from bpfleakd.verdicts.measured_sites import MeasuredSites
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.merged_histories import Units
from bpfleakd.verdicts.persistence import Persistence
from bpfleakd.verdicts.site_verdict import Classification, Context, classify_sites

# Maximum of functions whose sums are judged: 20 us each.
_FUNCTIONS_MAX = 128
# A function leaks if its rate exceeds that of its leaking sites by this factor: the others contribute.
_MORE = 1.25
# A site with at most this share of its blocks left has replaced the others. If these were fewer than that, or
# made fewer steps, it is a buffer or a table that is moved to a larger place now and then. One with both that
# few blocks and that few steps may be a table that has moved once.
_REPLACED_SHARE = 0.5
_BLOCKS_OF_A_TABLE = 20
_STEPS_OF_A_TABLE = 3.5
_NO_ROWS = np.zeros(0, np.intp)


def charged_to_several(functions: Units | None, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The leads of functions that more than one of these rows is charged to, up to a limit."""
    if functions is None:
        return _NO_ROWS
    leads, counts = np.unique(functions.lead[rows], return_counts=True)
    return leads[counts > 1][:_FUNCTIONS_MAX]


def _sums_of(
    source: HistorySource, groups: NDArray[np.intp], functions: Units, now_s: float, leak_after_s: float
) -> Persistence:
    """The measurements of functions, in the order of their leads."""
    measured, places = MeasuredSites(), np.arange(len(groups))
    measured.due(places, np.zeros(len(groups)), now_s)
    for part in source.parts(groups, functions):
        histories = source.histories(part, functions)
        where = np.searchsorted(groups, part)
        measured.keep(where, persistence_of(histories, leak_after_s), now_s)
    return measured.of(places, now_s, leak_after_s)


def judged_by_sums(
    source: HistorySource,
    functions: Units,
    groups: NDArray[np.intp],
    found: Classification,
    positions: NDArray[np.intp],
    context: Context,
) -> tuple[Classification, list[tuple[int, NDArray[np.intp]]]]:
    """Judge sums of functions; returns their verdicts, and the rows that take the one at a place.

    `groups` are the leads of the functions. `positions` has the place in `found` of each row, -1 for rows
    without live blocks; of rows that are one site, the first stands for all. A leak must show in the sum of
    all sites, since one may only replace another, and in that of those that can have a part in it.
    """
    m = found.measured

    def judged(leads: NDArray[np.intp], units: Units) -> Classification:
        return classify_sites(_sums_of(source, leads, units, m.observed_s, m.leak_after_s), context)

    of_all = judged(groups, functions)
    retaining = _retaining(functions, found, positions)
    places, rows = np.unique(positions, return_index=True)
    rows = np.sort(rows[places >= 0])
    leaking = charged_to_several(retaining, rows[np.isin(functions.lead[rows], groups[of_all.leaks])])
    verdicts = of_all.joined(judged(leaking, retaining)) if len(leaking) else of_all
    taken = []
    for group, lead in enumerate(groups.tolist()):
        if not of_all.leaks[group]:
            mine = rows[functions.lead[rows] == lead]
            taken.append((group, mine[_settled_by_sum(found, positions[mine], verdicts, group)]))
    for place, lead in enumerate(leaking.tolist(), len(groups)):
        if verdicts.leaks[place]:
            mine = rows[retaining.lead[rows] == lead]
            taken.append((place, mine[_settled_by_sum(found, positions[mine], verdicts, place)]))
    return verdicts, taken


def _retaining(functions: Units, found: Classification, positions: NDArray[np.intp]) -> Units:
    """The functions without those of their sites that can have no part in a leak.

    Beside a cache that fills ever more slowly, a queue that fills and drains (its blocks are young, the
    cache's are old) or a table that doubles its size makes a sum that rises evenly.
    """
    m = found.measured
    has_few_blocks, has_few_steps = m.born_count < _BLOCKS_OF_A_TABLE, m.steps < _STEPS_OF_A_TABLE
    is_table = (has_few_blocks | has_few_steps) & (m.live_count <= _REPLACED_SHARE * m.born_count)
    is_table |= has_few_blocks & has_few_steps
    retains = (found.codes != VERDICTS.index(Verdict.CHURN)) & ~(is_table & ~found.leaks)
    rows = np.flatnonzero((positions >= 0) & retains[positions])
    lead = np.arange(len(functions.lead))
    _leads, first, which = np.unique(functions.lead[rows], return_index=True, return_inverse=True)
    lead[rows] = rows[first][which]
    return Units(lead)


def _settled_by_sum(
    found: Classification, positions: NDArray[np.intp], sums: Classification, group: int
) -> NDArray[np.intp]:
    """Which of the sites at these positions take the verdict on their function's sum.

    A leak spread over several paths is a leak, though not all of them may show it: a JIT that compiles a
    method again, and inlines others, ends one path and begins another. A path that grows while the sum does
    not has only replaced another. A fluctuating sum is no evidence.
    """
    codes, code = found.codes[positions], sums.codes[group]
    grow = np.isin(codes, [VERDICTS.index(each) for each in (Verdict.GROWING, Verdict.PLATEAU)])
    leaks = found.leaks[positions]
    if code == VERDICTS.index(Verdict.LEAK):
        rate = _MORE * float(found.leak_bytes_per_s[positions][leaks].sum())
        return np.flatnonzero(grow | leaks) if sums.leak_bytes_per_s[group] > rate else _NO_ROWS
    if code in (VERDICTS.index(Verdict.PLATEAU), VERDICTS.index(Verdict.STEADY)):
        return np.flatnonzero(leaks)
    return _NO_ROWS
