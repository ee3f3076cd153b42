"""The call sites of one process and their histories.

Rules:
  - The kernel's counters are the truth; the table never adds up anything of its own.
  - A site never disappears while its process is traced: live may fall to 0, allocated never falls.
  - File mappings are sites but no part of the totals: what they take can be had back at any time.
  - A tick costs what has changed: sites with equal counters are not looked at one by one.
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
        self._file_rows: list[int] = []
        self._histories: list[History] = []
        self._counters: NDArray[np.int64] = np.zeros((0, len(COUNTERS)), np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def update(self, now_ns: int, keys: list[SiteKey], counters: NDArray[np.int64]) -> int:
        """Take in the counters read at `now_ns`: row i of `counters` (columns COUNTERS) is of `keys[i]`.

        Sites that are not named keep what they had. Returns how many sites changed.
        """
        self._add_new(now_ns, keys)
        rows = np.fromiter((self._rows[key] for key in keys), np.intp, len(keys))
        changed = np.flatnonzero((self._counters[rows] != counters).any(axis=1))
        self._counters[rows] = counters
        for index in changed.tolist():
            self._histories[rows[index]].append(now_ns, int(counters[index, 0]))
        names = "live_bytes", "live_count", "allocated_count"
        columns = (self._counters[:, COUNTERS.index(name)] for name in names)
        self.timeline.update(now_ns, rows[changed], *columns)
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
        return np.flatnonzero(self._counters[:, COUNTERS.index("allocated_count")])

    @property
    def used_count(self) -> int:
        """How many sites have allocated."""
        return len(self.used_rows)

    @property
    def totals(self) -> SiteCounters:
        """The sums over all sites but those of files, and the highest peak of theirs that was noted."""
        sums = self._counters.sum(axis=0)
        if self._file_rows:
            sums -= self._counters[self._file_rows].sum(axis=0)
        # The sites' own peaks were not at the same time.
        return replace(SiteCounters(*sums.tolist()), peak_live_bytes=self._peak_live_bytes)

    @property
    def keys(self) -> tuple[SiteKey, ...]:
        """The sites in the order in which they were first seen."""
        return tuple(self._keys)

    def counters(self, key: SiteKey) -> SiteCounters:
        """The counters of a site. KeyError if there is none."""
        return SiteCounters(*self._counters[self._rows[key]].tolist())

    def history(self, key: SiteKey) -> History:
        """The history of a site's live bytes. KeyError if there is none."""
        return self._histories[self._rows[key]]

    def columns(self) -> NDArray[np.int64]:
        """All counters, row i of `keys[i]`; read-only."""
        view = self._counters.view()
        view.flags.writeable = False
        return view

    def _add_new(self, now_ns: int, keys: list[SiteKey]) -> None:
        new = [key for key in keys if key not in self._rows]
        for key in new:
            self._rows[key] = len(self._keys)
            if key.kind is AllocationKind.FILE:
                self._file_rows.append(len(self._keys))
            self._keys.append(key)
            # Before it was seen there was nothing of it.
            self._histories.append(History(now_ns, 0))
        if new:
            empty = np.zeros((len(new), len(COUNTERS)), np.int64)
            self._counters = np.concatenate([self._counters, empty])
