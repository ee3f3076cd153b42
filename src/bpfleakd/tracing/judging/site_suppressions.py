"""Determines which call sites of one process are suppressed, as they get their names.

Rules:
  - Naming a site takes time. So a site is checked before it is shown, or before it makes its process a
    leaking one; the largest of the others are checked a few at a time: the count is a lower bound.
  - A site whose names may still change (those of a JIT come late) is checked again when it is shown again.
  - Mapped files are in no total, so suppressed ones count as call sites without bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from bpfleakd.analysis.suppressions import NO_SUPPRESSIONS, Suppressions
from bpfleakd.model.code.stack import Frame, NamedStack
from bpfleakd.model.report import SuppressedSites
from bpfleakd.table.site_table import COUNTERS, SiteTable

_NOT_LOOKED_AT, _UNDECIDED, _SHOWN, _SUPPRESSED = range(4)


class SiteSuppressions:
    """The sites of a table, by row, that match one of the patterns."""

    def __init__(self, suppressions: Suppressions = NO_SUPPRESSIONS) -> None:
        self._suppressions = suppressions
        self._states: NDArray[np.int8] = np.zeros(0, np.int8)
        # Pattern and fingerprint of each suppressed row.
        self._found: dict[int, tuple[str, str]] = {}

    def look_at(self, sites: Iterable[tuple[int, NamedStack]]) -> bool:
        """Check rows with their names; returns whether one of them is newly suppressed."""
        found_before = len(self._found)
        for row, named in sites:
            self._lengthen(row + 1)
            if self._states[row] in (_SHOWN, _SUPPRESSED) or named.stack.pending:
                continue
            pattern = self._suppressions.match(named.stack.frames)
            if pattern is not None:
                self._found[row] = pattern, named.fingerprint
                self._states[row] = _SUPPRESSED
            else:
                self._states[row] = _SHOWN if named.final else _UNDECIDED
        return len(self._found) > found_before

    def forget(self, rows: NDArray[np.intp]) -> None:
        """Forget rows that other sites may reuse."""
        self._of(rows)
        self._states[rows] = _NOT_LOOKED_AT
        for row in rows.tolist():
            self._found.pop(row, None)

    def match(self, stack: Sequence[Frame]) -> str | None:
        """The pattern that suppresses a stack; None if none does."""
        return self._suppressions.match(stack)

    def shown(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows that are not suppressed, as far as known."""
        shown: NDArray[np.intp] = rows[self._of(rows) != _SUPPRESSED]
        return shown

    def unknown(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows that have not been checked yet."""
        unknown: NDArray[np.intp] = rows[self._of(rows) == _NOT_LOOKED_AT]
        return unknown

    @property
    def rows(self) -> NDArray[np.intp]:
        """All suppressed rows."""
        return np.array(sorted(self._found), np.intp)

    def sums(self, table: SiteTable) -> dict[str, SuppressedSites]:
        """By pattern: the number of call sites, and their live memory."""
        counters = table.columns()
        live_bytes = counters[:, COUNTERS.index("live_bytes")].copy()
        live_bytes[table.file_rows] = 0
        live_count = counters[:, COUNTERS.index("live_count")]
        sites: dict[str, set[str]] = {}
        sums: dict[str, tuple[int, int]] = {}
        for row, (pattern, fingerprint) in self._found.items():
            sites.setdefault(pattern, set()).add(fingerprint)
            size_bytes, count = sums.get(pattern, (0, 0))
            sums[pattern] = size_bytes + int(live_bytes[row]), count + int(live_count[row])
        return {pattern: SuppressedSites(len(sites[pattern]), *sums[pattern]) for pattern in sorted(sums)}

    def _of(self, rows: NDArray[np.intp]) -> NDArray[np.int8]:
        self._lengthen(int(rows.max(initial=-1)) + 1)
        return self._states[rows]

    def _lengthen(self, length: int) -> None:
        missing = length - len(self._states)
        if missing > 0:
            self._states = np.concatenate([self._states, np.zeros(max(missing, 64), np.int8)])
