"""Functions that several sites are charged to, judged on the sum of their sites."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.verdict import VERDICTS, Verdict
from bpfleakd.tracing.judging.history_source import HistorySource
from bpfleakd.verdicts.measured_sites import MeasuredSites
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.merged_histories import Units
from bpfleakd.verdicts.persistence import Persistence
from bpfleakd.verdicts.site_verdict import Classification

__all__ = ["charged_to_several", "settled_by_sum", "sums_of"]

# Functions whose sums are judged: 20 us each.
_FUNCTIONS_MAX = 128
# A function leaks by so much more than those of its sites that leak: the others have a part in it.
_MORE = 1.25
_NO_ROWS = np.zeros(0, np.intp)


def charged_to_several(functions: Units | None, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """The leads of functions that more than one of these rows is charged to, not too many."""
    if functions is None:
        return _NO_ROWS
    leads, counts = np.unique(functions.lead[rows], return_counts=True)
    return leads[counts > 1][:_FUNCTIONS_MAX]


def sums_of(
    source: HistorySource, groups: NDArray[np.intp], functions: Units, now_s: float, leak_after_s: float
) -> Persistence:
    """What is measured of functions, in the order of their leads."""
    measured, places = MeasuredSites(), np.arange(len(groups))
    measured.due(places, np.zeros(len(groups)), now_s)
    for part in source.parts(groups, functions):
        histories = source.histories(part, functions)
        where = np.searchsorted(groups, part)
        measured.keep(where, persistence_of(histories, leak_after_s), now_s)
    return measured.of(places, now_s, leak_after_s)


def settled_by_sum(
    found: Classification, positions: NDArray[np.intp], sums: Classification, group: int
) -> NDArray[np.intp]:
    """Which of the sites at these positions take the verdict of their function's sum.

    A leak spread over several paths is a leak, though not all of them may show it: a JIT that compiles a
    method again, and inlines others, ends one path and begins another. A path that grows while the sum has
    stopped has only replaced another. A sum that fluctuates is no evidence.
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
