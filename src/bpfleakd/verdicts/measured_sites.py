"""A cache of call sites' measurements, kept until they may have changed.

Measuring a site takes 20 us; judging it by its measurements takes almost no time.

Rules:
  - A site that has changed is measured again; so is one that grows or persists, since its silence changes the
    verdict.
  - For the others only time passes, and all thresholds are shares of the time observed: they are measured
    again when that time has grown by an eighth.
  - Until then only their quiet and silent times grow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpfleakd.verdicts.persistence import COLUMNS, Persistence

_LONGER = 1 + 1 / 8
_STEPS_OF_GROWTH = 2
_GOING_ON = ("quiet_s", "silence_s")

Rows = NDArray[np.intp]


class MeasuredSites:
    """Measurements of sites, by row of their table. Times are in seconds since the recording began."""

    def __init__(self) -> None:
        self._columns: dict[str, NDArray[Any]] = {}
        # 0: never.
        self._measured_s: NDArray[np.float64] = np.zeros(0)

    def due(self, rows: Rows, changed_s: NDArray[np.float64], now_s: float) -> Rows:
        """Those rows that must be measured; row i last changed at `changed_s[i]`."""
        self._lengthen(int(rows.max(initial=-1)) + 1)
        measured_s = self._measured_s[rows]
        is_due = (changed_s > measured_s) | (now_s >= measured_s * _LONGER)
        if self._columns:
            grows = self._columns["grows"][rows] & (self._columns["steps"][rows] >= _STEPS_OF_GROWTH)
            is_due |= grows | self._columns["persists"][rows]
        return rows[is_due]

    def keep(self, rows: Rows, measured: Persistence, now_s: float) -> None:
        """Store measurements as of now; site i of `measured` is in row `rows[i]`."""
        for name in COLUMNS:
            column = getattr(measured, name)
            if name not in self._columns:
                self._columns[name] = np.zeros(len(self._measured_s), column.dtype)
            self._columns[name][rows] = column
        self._measured_s[rows] = now_s

    def of(self, rows: Rows, now_s: float, leak_after_s: float) -> Persistence:
        """The measurements of rows, all of which have been measured."""
        columns = {name: self._columns[name][rows] for name in COLUMNS}
        for name in _GOING_ON:
            columns[name] = columns[name] + (now_s - self._measured_s[rows])
        return Persistence(now_s, leak_after_s, **columns)

    def forget(self, rows: Rows) -> None:
        """Drop the measurements of rows that other sites may reuse."""
        self._lengthen(int(rows.max(initial=-1)) + 1)
        self._measured_s[rows] = 0.0

    def _lengthen(self, length: int) -> None:
        missing = length - len(self._measured_s)
        if missing <= 0:
            return
        missing = max(missing, len(self._measured_s))
        self._measured_s = np.concatenate([self._measured_s, np.zeros(missing)])
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate([column, np.zeros(missing, column.dtype)])
