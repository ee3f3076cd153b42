"""The state of a traced process at another time, by call site, and the changes since then.

Rules:
  - The present comes from the counters. The past comes from the timeline: the least of each call site within
    a bin of time, which gets wider with age. The answer states its width.
  - The timeline rounds bytes to 24 bits. A past figure within that precision of the present one counts as
    unchanged.
  - There is no data from before the attach. At its start all figures are 0, unless another daemon had traced
    the process already: then the first reading is the start.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.units import human_duration

_NS_PER_S = 1_000_000_000


class LiveFigures(Struct, frozen=True):
    """The live figures at a time, by row of the table; `attached_s` is that time, since the attach."""

    source: str
    attached_s: float
    resolution_s: float
    live_bytes: NDArray[np.int64]
    live_count: NDArray[np.int64]


def figures_at(
    table: SiteTable, ago_s: float | None, now_ns: int, *, pid: int, was_adopted: bool
) -> LiveFigures:
    """The live figures `ago_s` seconds ago (0: now; None: at the start). Raises NoSuchTime."""
    counters = table.columns()
    now_bytes = counters[:, COUNTERS.index("live_bytes")]
    now_count = counters[:, COUNTERS.index("live_count")]
    traced_s = (now_ns - table.began_ns) / _NS_PER_S
    if ago_s == 0:
        return LiveFigures("now", round(traced_s, 3), 0.0, now_bytes, now_count)
    if ago_s is not None and ago_s > traced_s:
        raise errors.NoSuchTime(
            f"process {pid} has been traced for {human_duration(traced_s)}: "
            f"there is no data from {human_duration(ago_s)} ago",
            "use --from start",
        )
    if ago_s is None and not was_adopted:
        nothing = np.zeros(len(table), np.int64)
        return LiveFigures("start", 0.0, 0.0, nothing, nothing)
    if not len(table.timeline):
        raise errors.NoSuchTime(f"there is no reading of process {pid} yet", "try again in a second")
    time_ns = table.began_ns if ago_s is None else now_ns - round(ago_s * _NS_PER_S)
    past = table.past(time_ns)
    return LiveFigures(
        "start" if ago_s is None else f"{human_duration(ago_s)} ago",
        round((time_ns - table.began_ns) / _NS_PER_S, 3),
        round((past.end_ns - past.start_ns) / _NS_PER_S, 3),
        np.where(now_bytes.astype(np.float32) == past.low_bytes, now_bytes, past.low_bytes).astype(np.int64),
        np.where(now_count.astype(np.float32) == past.low_count, now_count, past.low_count).astype(np.int64),
    )


def changed_rows(before: LiveFigures, after: LiveFigures) -> NDArray[np.intp]:
    """The rows whose figures differ, the largest changes in bytes first."""
    gained = after.live_bytes - before.live_bytes
    rows = np.flatnonzero((gained != 0) | (after.live_count != before.live_count))
    return rows[np.argsort(-np.abs(gained[rows]), kind="stable")]


def report_at(
    table: SiteTable, process: ProcessSummary, sites: dict[int, SiteReport], figures: LiveFigures
) -> LeakReport:
    """Some sites, by row, with their figures at that time; the totals include all sites but files."""
    memory = table.memory_rows
    return LeakReport(
        replace(
            process,
            live_bytes=int(figures.live_bytes[memory].sum()),
            live_count=int(figures.live_count[memory].sum()),
            attached_s=figures.attached_s,
        ),
        tuple(
            replace(site, live_bytes=int(figures.live_bytes[row]), live_count=int(figures.live_count[row]))
            for row, site in sites.items()
        ),
        {},
    )
