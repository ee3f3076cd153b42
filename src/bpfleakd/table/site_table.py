"""The call sites of one process and their histories.

Rules:
  - The kernel's counters are the truth; sums over sites follow them.
  - Sums of allocations never fall. A site without live blocks may be removed to make room for others; its
    allocations stay in the sums.
  - File mappings are sites but not part of the totals: the kernel can reclaim their memory at any time.
  - A reading costs only what has changed, however many sites there are.
  - A restored table continues where it was saved. Parts that were not saved count as constant since the
    recording began; time without a daemon is a gap.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.history import History
from bpfleakd.table.table_checkpoint import TableCheckpoint, keys_of, texts_of
from bpfleakd.table.timeline import BIN_NS, PastFigures, Timeline

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
_HEAP, _FILE, _GO_HEAP, _STACK = map(
    _KINDS.index,
    (AllocationKind.HEAP, AllocationKind.FILE, AllocationKind.GO_HEAP, AllocationKind.THREAD_STACK),
)


_GAPS_MAX = 16


class SiteTable:
    """Sites of one process, by key. `began_ns` is when its recording started.

    Without `knows_past`, the first reading is the beginning and shows no gain.
    """

    def __init__(self, began_ns: int, *, knows_past: bool = True) -> None:
        self.began_ns = began_ns
        self.updated_ns = began_ns
        self.total_history = History(began_ns, 0)
        self.timeline = Timeline(began_ns)
        self._peak_live_bytes = 0
        self._rows: dict[SiteKey, int] = {}
        # Keys of free rows mean nothing.
        self._keys: list[SiteKey] = []
        self._free_rows: list[int] = []
        # Has spare rows. A column is contiguous, since sites are sorted by one.
        self._counters: NDArray[np.int64] = np.zeros((0, len(COUNTERS)), np.int64, order="F")
        self._kinds: NDArray[np.int8] = np.zeros(0, np.int8)
        self._changed_ns: NDArray[np.int64] = np.zeros(0, np.int64)
        self._sums: NDArray[np.int64] = np.zeros(len(COUNTERS), np.int64)
        self.used_count = 0
        """How many sites have allocated."""
        self._heap_sums: NDArray[np.int64] = np.zeros(len(COUNTERS), np.int64)
        self.gaps_ns: list[tuple[int, int]] = []
        self._is_in_gap = False
        self._knows_all = self._knows_total = knows_past

    def __len__(self) -> int:
        """The number of rows, including free ones."""
        return len(self._keys)

    def update(self, now_ns: int, keys: list[SiteKey], counters: NDArray[np.int64]) -> int:
        """Record the counters read at `now_ns`: row i of `counters` (columns COUNTERS) belongs to `keys[i]`.

        Other sites keep their counters. Returns how many sites changed.
        """
        if not self._knows_all and not len(self.timeline):
            # The memory was there at the time of the reading, not when the attach began.
            self.began_ns, self.timeline = now_ns, Timeline(now_ns)
        if self._is_in_gap:
            self._end_gap(now_ns)
        new = self._add_new(keys)
        rows = np.fromiter((self._rows[key] for key in keys), np.intp, len(keys))
        before = self._counters[rows]
        changed = np.flatnonzero((before != counters).any(axis=1))
        rows, before, after = rows[changed], before[changed], counters[changed]
        self._counters[rows] = after
        self._changed_ns[rows] = now_ns
        self._add_up(self._kinds[rows], before, after)
        if not self._knows_all:
            self._knows_all = True
            self._note_unknown(new)
        self.timeline.update(now_ns, rows, *(after[:, column] for column in _OF_TIMELINE))
        self.updated_ns = now_ns
        live_bytes = self.totals.live_bytes
        self.note_peak(live_bytes)
        if not self._knows_total:
            self._knows_total = True
            self.total_history = History(self.began_ns, live_bytes)
        # Each report adds a reading; the history keeps one for each bin of time.
        self.total_history.append(now_ns, live_bytes, BIN_NS)
        return len(changed)

    def begin_with(self, keys: list[SiteKey], counters: NDArray[np.int64]) -> None:
        """Add sites that already had these counters when the recording began."""
        self._knows_all = False
        self.update(self.began_ns, keys, counters)
        self.total_history = History(self.began_ns, self.totals.live_bytes)

    def remove(self, rows: NDArray[np.intp], heirs: NDArray[np.intp] | None = None) -> None:
        """Remove sites of the heap without live blocks, each row named once. New sites reuse the rows.

        `heirs` are the rows that go on with their past, in the same order; -1, or None at all: nobody does.
        """
        if heirs is not None:
            inherited = heirs >= 0
            self.timeline.hand_over(rows[inherited], heirs[inherited])
        self.timeline.forget(rows)
        self.used_count -= int((self._counters[rows, _ALLOCATED_COUNT] != 0).sum())
        self._counters[rows] = 0
        self._changed_ns[rows] = 0
        for row in rows.tolist():
            del self._rows[self._keys[row]]
        self._free_rows += rows.tolist()

    def add_removed(self, counters: SiteCounters) -> None:
        """Add the counters of sites that were removed before this table existed to the sums."""
        removed = [getattr(counters, name) for name in COUNTERS]
        self._sums += removed
        self._heap_sums += removed

    def note_peak(self, live_bytes: int) -> None:
        """Record that this many bytes were live at one time in all sites (but those of files)."""
        self._peak_live_bytes = max(self._peak_live_bytes, live_bytes)

    def forget_sites(self) -> None:
        """Drop all sites. The totals and their history stay; later updates are ignored."""
        self._keys.clear()
        self._rows.clear()
        self._free_rows.clear()
        self._counters = self._counters[:0].copy()
        self._kinds = self._kinds[:0].copy()
        self._changed_ns = self._changed_ns[:0].copy()
        self.timeline = Timeline(self.began_ns)

    @property
    def rows(self) -> NDArray[np.intp]:
        """The rows of sites, in order, without free rows."""
        return np.sort(np.fromiter(self._rows.values(), np.intp, len(self._rows)))

    @property
    def used_rows(self) -> NDArray[np.intp]:
        """The rows of sites with allocations: the overflow site has a row before anything overflows."""
        return np.flatnonzero(self.columns()[:, _ALLOCATED_COUNT])

    @property
    def memory_rows(self) -> NDArray[np.intp]:
        """The rows of sites that count in the totals: all but those of files."""
        return np.flatnonzero(self._kinds[: len(self)] != _FILE)

    @property
    def file_rows(self) -> NDArray[np.intp]:
        """The rows of sites that map files or shared memory."""
        return np.flatnonzero(self._kinds[: len(self)] == _FILE)

    @property
    def stack_rows(self) -> NDArray[np.intp]:
        """The rows of sites that map thread stacks."""
        return np.flatnonzero(self._kinds[: len(self)] == _STACK)

    def are_heap(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of the rows are sites of the heap."""
        heap: NDArray[np.bool_] = self._kinds[rows] == _HEAP
        return heap

    def have_blocks(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of the rows are sites with individual blocks, whose ages are known."""
        have_blocks: NDArray[np.bool_] = self._kinds[rows] != _GO_HEAP
        return have_blocks

    def changed_ns(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """The last reading at which the counters of these rows changed; 0 if they never did."""
        return self._changed_ns[rows]

    def since_began_s(self, time_ns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Times in seconds since the recording began."""
        return (time_ns - self.began_ns) / 1e9

    @property
    def totals(self) -> SiteCounters:
        """The sums over all sites but those of files, and the highest peak recorded for them."""
        # The sites had their own peaks at different times.
        return replace(SiteCounters(*self._sums.tolist()), peak_live_bytes=self._peak_live_bytes)

    @property
    def heap_totals(self) -> SiteCounters:
        """The sums over the sites of the heap, without a peak."""
        return replace(SiteCounters(*self._heap_sums.tolist()), peak_live_bytes=0)

    @property
    def keys(self) -> tuple[SiteKey, ...]:
        """The sites by row; keys of free rows are not in the table."""
        return tuple(self._keys)

    def keys_of(self, rows: NDArray[np.intp]) -> list[SiteKey]:
        """The sites of these rows."""
        return [self._keys[row] for row in rows.tolist()]

    def row_of(self, key: SiteKey) -> int:
        """The row of a site; -1 if it has none."""
        return self._rows.get(key, -1)

    def counters(self, key: SiteKey) -> SiteCounters:
        """The counters of a site. Raises KeyError if it is unknown."""
        return SiteCounters(*self._counters[self._rows[key]].tolist())

    def columns(self) -> NDArray[np.int64]:
        """All counters, row i of `keys[i]`; read-only."""
        view = self._counters[: len(self)]
        view.flags.writeable = False
        return view

    def checkpoint(self, rows: NDArray[np.intp]) -> TableCheckpoint:
        """The checkpoint of the sites of these rows."""
        return TableCheckpoint(
            self.timeline.checkpoint(rows),
            texts_of([self._keys[row] for row in rows.tolist()]),
            len(rows) == len(self._rows),
            self.total_history.points,
            self._peak_live_bytes,
            self.gaps_ns,
        )

    @classmethod
    def restored(cls, checkpoint: TableCheckpoint, now_ns: int) -> SiteTable:
        """Restore the table at the end of the gap since its checkpoint.

        Raises ValueError if it is damaged.
        """
        keys, timeline = keys_of(checkpoint.sites), Timeline.restored(checkpoint.timeline)
        if len(keys) != len(checkpoint.timeline.allocated_count):
            raise ValueError("columns of other call sites")
        table = cls(timeline.began_ns)
        table.timeline = timeline
        table.updated_ns = int(timeline.edges_ns[-1])
        table._add_new(keys)
        table.total_history = History.of(checkpoint.totals)
        table.note_peak(checkpoint.peak_live_bytes)
        table._note_gap(checkpoint.gaps_ns, now_ns)
        table._knows_all = checkpoint.is_whole
        return table

    @property
    def unread_s(self) -> float:
        """Total time without readings since the recording began."""
        return sum(end_ns - start_ns for start_ns, end_ns in self.gaps_ns) / 1e9

    @property
    def read_ns(self) -> NDArray[np.int64]:
        """The edges of the timeline at which something was read: those outside of gaps."""
        edges_ns = self.timeline.edges_ns
        unread = [(edges_ns > start_ns) & (edges_ns < end_ns) for start_ns, end_ns in self.gaps_ns]
        return edges_ns[~np.logical_or.reduce(unread)] if unread else edges_ns

    def past(self, time_ns: int) -> PastFigures:
        """The figures of all sites at a time; within a gap, those of its end.

        Raises ValueError without readings.
        """
        for start_ns, end_ns in self.gaps_ns:
            if start_ns < time_ns <= end_ns:
                return replace(self.timeline.at(end_ns, len(self)), start_ns=start_ns)
        return self.timeline.at(time_ns, len(self))

    def _end_gap(self, now_ns: int) -> None:
        """End a gap with the first reading after it."""
        self._is_in_gap = False
        if now_ns > self.updated_ns:
            self.gaps_ns[-1] = self.updated_ns, now_ns
            self.timeline.leave_gap(now_ns)

    def _note_gap(self, before: list[tuple[int, int]], now_ns: int) -> None:
        self._is_in_gap = True
        # A daemon that ended before its first reading did not end the gap.
        ended = [gap_ns for gap_ns in before if gap_ns[1] <= self.updated_ns]
        gaps_ns = [*ended, (self.updated_ns, max(self.updated_ns, now_ns))]
        while len(gaps_ns) > _GAPS_MAX:
            # The oldest two gaps become one that is as long as both together.
            (start_ns, end_ns), (later_ns, last_ns) = gaps_ns[:2]
            gaps_ns[:2] = [(later_ns - (end_ns - start_ns), last_ns)]
        self.gaps_ns = gaps_ns

    def _note_unknown(self, rows: NDArray[np.intp]) -> None:
        figures = self._counters[rows]
        self.timeline.were_always(rows, *(figures[:, column] for column in _OF_TIMELINE))

    def _add_up(self, kinds: NDArray[np.int8], before: NDArray[np.int64], after: NDArray[np.int64]) -> None:
        gained = after - before
        self._sums += gained[kinds != _FILE].sum(axis=0)
        self._heap_sums += gained[kinds == _HEAP].sum(axis=0)
        was_used, is_used = before[:, _ALLOCATED_COUNT] != 0, after[:, _ALLOCATED_COUNT] != 0
        self.used_count += int(is_used.sum()) - int(was_used.sum())

    def _add_new(self, keys: list[SiteKey]) -> NDArray[np.intp]:
        """Add rows for sites that have none yet; returns the rows."""
        new = [key for key in keys if key not in self._rows]
        self._make_room(len(self) + len(new))
        rows = []
        for key in new:
            if self._free_rows:
                row = self._free_rows.pop()
                self._keys[row] = key
            else:
                row = len(self)
                self._keys.append(key)
            self._kinds[row] = _KINDS.index(key.kind)
            self._rows[key] = row
            rows.append(row)
        return np.array(rows, np.intp)

    def _make_room(self, rows: int) -> None:
        if rows <= len(self._kinds):
            return
        # Doubles the capacity, so that each row is moved only a few times.
        counters = np.zeros((max(rows, 2 * len(self._kinds)), len(COUNTERS)), np.int64, order="F")
        counters[: len(self)] = self._counters[: len(self)]
        kinds = np.zeros(len(counters), np.int8)
        kinds[: len(self)] = self._kinds[: len(self)]
        changed_ns = np.zeros(len(counters), np.int64)
        changed_ns[: len(self)] = self._changed_ns[: len(self)]
        self._counters, self._kinds, self._changed_ns = counters, kinds, changed_ns
