"""The call sites of one process and their histories.

Rules:
  - The kernel's counters are the truth; sums over sites are kept up with them.
  - A site never disappears while its process is traced: live may fall to 0, allocated never falls.
  - File mappings are sites but no part of the totals: what they take can be had back at any time.
  - A reading costs what has changed, however many sites there are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.history import History
from bpfleakd.table.timeline import Timeline

__all__ = ["COUNTERS", "SiteTable"]

# Column order of the counters that `update` takes.
COUNTERS = (
    "live_bytes",
    "live_count",
    "allocated_bytes",
    "allocated_count",
    "temporary_count",
    "peak_live_bytes",
    "live_bytes_variance",
    "live_count_variance",
)
_LIVE_BYTES, _ALLOCATED_BYTES, _ALLOCATED_COUNT = map(
    COUNTERS.index, ("live_bytes", "allocated_bytes", "allocated_count")
)
_OF_TIMELINE = _LIVE_BYTES, COUNTERS.index("live_count"), _ALLOCATED_COUNT
_KINDS = tuple(AllocationKind)
_HEAP, _FILE = _KINDS.index(AllocationKind.HEAP), _KINDS.index(AllocationKind.FILE)


class SiteTable:
    """Sites of one process, by key. `began_ns` is when its recording started."""

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.updated_ns = began_ns
        self.total_history = History(began_ns, 0)
        self.timeline = Timeline(began_ns)
        self._peak_live_bytes = 0
        self._rows: dict[SiteKey, int] = {}
        self._keys: list[SiteKey] = []
        self._histories: list[History] = []
        # With room for more. A column is in one piece, since sites are sorted by one.
        self._counters: NDArray[np.int64] = np.zeros((0, len(COUNTERS)), np.int64, order="F")
        self._kinds: NDArray[np.int8] = np.zeros(0, np.int8)
        self._sums: NDArray[np.int64] = np.zeros(len(COUNTERS), np.int64)
        self.used_count = 0
        """How many sites have allocated."""
        self.heap_allocated_bytes = 0
        """What all sites of the heap have allocated."""

    def __len__(self) -> int:
        return len(self._keys)

    def update(self, now_ns: int, keys: list[SiteKey], counters: NDArray[np.int64]) -> int:
        """Take in the counters read at `now_ns`: row i of `counters` (columns COUNTERS) is of `keys[i]`.

        Sites that are not named keep what they had. Returns how many sites changed.
        """
        self._add_new(now_ns, keys)
        rows = np.fromiter((self._rows[key] for key in keys), np.intp, len(keys))
        before = self._counters[rows]
        changed = np.flatnonzero((before != counters).any(axis=1))
        rows, before, after = rows[changed], before[changed], counters[changed]
        self._counters[rows] = after
        for row, live_bytes in zip(rows.tolist(), after[:, _LIVE_BYTES].tolist(), strict=True):
            self._histories[row].append(now_ns, live_bytes)
        self._add_up(self._kinds[rows], before, after)
        self.timeline.update(now_ns, rows, *(after[:, column] for column in _OF_TIMELINE))
        self.updated_ns = now_ns
        live_bytes = self.totals.live_bytes
        self.note_peak(live_bytes)
        self.total_history.append(now_ns, live_bytes)
        return len(changed)

    def note_peak(self, live_bytes: int) -> None:
        """So much was live in all sites (but those of files) at one time."""
        self._peak_live_bytes = max(self._peak_live_bytes, live_bytes)

    @property
    def used_rows(self) -> NDArray[np.intp]:
        """The rows of sites that have allocated: the overflow site is there before anything overflows."""
        return np.flatnonzero(self.columns()[:, _ALLOCATED_COUNT])

    @property
    def memory_rows(self) -> NDArray[np.intp]:
        """The rows of sites that are in the totals: all but those of files."""
        return np.flatnonzero(self._kinds[: len(self)] != _FILE)

    @property
    def totals(self) -> SiteCounters:
        """The sums over all sites but those of files, and the highest peak of theirs that was noted."""
        # The sites' own peaks were not at the same time.
        return replace(SiteCounters(*self._sums.tolist()), peak_live_bytes=self._peak_live_bytes)

    @property
    def keys(self) -> tuple[SiteKey, ...]:
        """The sites in the order in which they were first seen."""
        return tuple(self._keys)

    def row_of(self, key: SiteKey) -> int:
        """The row of a site; -1 if there is none."""
        return self._rows.get(key, -1)

    def counters(self, key: SiteKey) -> SiteCounters:
        """The counters of a site. KeyError if there is none."""
        return SiteCounters(*self._counters[self._rows[key]].tolist())

    def history(self, key: SiteKey) -> History:
        """The history of a site's live bytes. KeyError if there is none."""
        return self._histories[self._rows[key]]

    def columns(self) -> NDArray[np.int64]:
        """All counters, row i of `keys[i]`; read-only."""
        view = self._counters[: len(self)]
        view.flags.writeable = False
        return view

    def _add_up(self, kinds: NDArray[np.int8], before: NDArray[np.int64], after: NDArray[np.int64]) -> None:
        gained = after - before
        self._sums += gained[kinds != _FILE].sum(axis=0)
        self.heap_allocated_bytes += int(gained[kinds == _HEAP, _ALLOCATED_BYTES].sum())
        was_used, is_used = before[:, _ALLOCATED_COUNT] != 0, after[:, _ALLOCATED_COUNT] != 0
        self.used_count += int(is_used.sum()) - int(was_used.sum())

    def _add_new(self, now_ns: int, keys: list[SiteKey]) -> None:
        new = [key for key in keys if key not in self._rows]
        if not new:
            return
        self._make_room(len(self) + len(new))
        for key in new:
            self._kinds[len(self)] = _KINDS.index(key.kind)
            self._rows[key] = len(self)
            self._keys.append(key)
            # Before it was seen there was nothing of it.
            self._histories.append(History(now_ns, 0))

    def _make_room(self, rows: int) -> None:
        if rows <= len(self._kinds):
            return
        # Twice as much, so that each row is moved a few times only.
        counters = np.zeros((max(rows, 2 * len(self._kinds)), len(COUNTERS)), np.int64, order="F")
        counters[: len(self)] = self._counters[: len(self)]
        kinds = np.zeros(len(counters), np.int8)
        kinds[: len(self)] = self._kinds[: len(self)]
        self._counters, self._kinds = counters, kinds
