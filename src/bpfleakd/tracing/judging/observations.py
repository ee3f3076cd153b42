"""A process' counters and memory over time, which the verdicts on its sites take into account."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.site import SiteCounters
from bpfleakd.table.estimates import COUNT_VARIANCE_UNIT
from bpfleakd.table.history import History
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.table.table_checkpoint import TimelineCheckpoint
from bpfleakd.table.timeline import Timeline
from bpfleakd.verdicts.full_table import LIVE_BLOCKS, THREADS
from bpfleakd.verdicts.site_verdict import Context

_ONLY_ROW = np.zeros(1, np.intp)
_OF_ESTIMATES = ("live_count", "allocated_count", "live_count_variance")
# A table counts as full once this share of new entries is refused in this many readings in a
# row: on PREEMPT_RT the kernel may briefly have no memory available. It has room again after as many readings
# with new blocks and without a refusal.
_FULL_SHARE, _FULL_READINGS = 0.1, 3
_ROOM_AFTER_NS = 10_000_000_000
# Blocks are no smaller on average in any allocator (32 bytes at least in glibc).
_SMALLEST_BLOCK_BYTES = 16


class ObservationsCheckpoint(Struct, frozen=True):
    """The stored data: points of histories."""

    unmatched_frees: list[tuple[int, int]]
    lost_blocks: list[tuple[int, int]]
    memory: TimelineCheckpoint | None
    intervals: list[tuple[int, int]] = msgspec.field(default_factory=list)
    collections: list[tuple[int, int]] = msgspec.field(default_factory=list)
    full_since_ns: int | None = None
    first_memory_bytes: int | None = None
    full_of: str = LIVE_BLOCKS


class Observations:
    """The observations of one process from its attach on."""

    def __init__(self) -> None:
        self._unmatched_frees: History | None = None
        self._lost_blocks: History | None = None
        self._lost_frees = 0
        self._memory: Timeline | None = None
        self._first_memory_bytes: int | None = None
        self._intervals: History | None = None
        self._collections: History | None = None
        self._room, self._site_room, self._region_room = _Room(), _Room(), _Room()
        self._full_of = LIVE_BLOCKS

    @classmethod
    def restored(cls, checkpoint: ObservationsCheckpoint) -> Observations:
        """Restore saved observations. Raises ValueError if they are inconsistent."""
        observations = cls()
        if checkpoint.unmatched_frees:
            observations._unmatched_frees = History.of(checkpoint.unmatched_frees)
            observations._lost_blocks = History.of(checkpoint.lost_blocks)
        if checkpoint.intervals:
            observations._intervals = History.of(checkpoint.intervals)
        if checkpoint.collections:
            observations._collections = History.of(checkpoint.collections)
        observations._room.full_since_ns, observations._full_of = checkpoint.full_since_ns, checkpoint.full_of
        observations._first_memory_bytes = checkpoint.first_memory_bytes
        if checkpoint.memory is not None:
            observations._memory = Timeline.restored(checkpoint.memory)
        return observations

    def checkpoint(self) -> ObservationsCheckpoint:
        """The data to save."""
        return ObservationsCheckpoint(
            self._unmatched_frees.points if self._unmatched_frees else [],
            self._lost_blocks.points if self._lost_blocks else [],
            self._memory.checkpoint(_ONLY_ROW) if self._memory else None,
            self._intervals.points if self._intervals else [],
            self._collections.points if self._collections else [],
            self._room.full_since_ns,
            self._first_memory_bytes,
            self._full_of,
        )

    def note(
        self, now_ns: int, counters: ProcessCounters, heap: SiteCounters, regions: tuple[int, int] = (0, 0)
    ) -> None:
        """Record the process' counters, the sums over its heap sites, and the numbers of refused and recorded
        regions.
        """
        older_frees = _frees_of_older_blocks(counters, heap)
        lost_blocks = _refused(counters)
        if self._unmatched_frees is None or self._lost_blocks is None:
            self._unmatched_frees = History(now_ns, older_frees)
            self._lost_blocks = History(now_ns, lost_blocks)
        self._unmatched_frees.append(now_ns, older_frees)
        self._lost_blocks.append(now_ns, lost_blocks)
        if not self.full_since_ns:
            by_threads = counters.losses["thread_full"] > counters.losses["live_full"]
            self._full_of = THREADS if by_threads else LIVE_BLOCKS
        self._room.note(now_ns, lost_blocks, counters.recorded)
        self._site_room.note(now_ns, counters.losses["site_full"], counters.recorded)
        self._region_room.note(now_ns, *regions)
        interval_bytes = counters.sample_interval_bytes
        if self._intervals is None:
            self._intervals = History(now_ns, interval_bytes)
        self._intervals.append(now_ns, interval_bytes)
        self._lost_frees = counters.losses["free_missed"]

    def note_collections(self, now_ns: int, count: int) -> None:
        """Record `count` collections of a heap since the last call; its sites are judged by collections."""
        if self._collections is None:
            self._collections = History(now_ns, 0)
        self._collections.append(now_ns, self._collections.last + count)

    def note_memory(self, now_ns: int, began_ns: int, anonymous_bytes: int | None) -> None:
        """Record the anonymous memory of the process; None if it cannot be read."""
        if anonymous_bytes is None:
            return
        if self._memory is None:
            self._memory = Timeline(began_ns)
            self._first_memory_bytes = anonymous_bytes
        figures = np.array([anonymous_bytes]), np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._memory.update(now_ns, _ONLY_ROW, *figures)

    def context(self, table: SiteTable) -> Context:
        """The figures of the process that the verdicts on its sites take into account."""
        full_since_ns = self.full_since_ns
        # Data after the table was full is not judged.
        end_ns = table.updated_ns if full_since_ns is None else full_since_ns
        lately_ns = end_ns - (end_ns - table.began_ns) // 3

        def gained(history: History | None) -> int:
            return history.at(end_ns) - history.at(max(lately_ns, history.first_ns)) if history else 0

        growth_variance, churn_variance = _variances(table)
        return Context(
            replaced_count=max(0, gained(self._unmatched_frees)) if self._may_be_older() else 0,
            growth_variance=growth_variance,
            churn_variance=churn_variance,
            lost_frees=self._lost_frees,
            lost_blocks=gained(self._lost_blocks),
            unread_s=table.unread_s,
            full_s=0.0 if full_since_ns is None else (table.updated_ns - full_since_ns) / 1e9,
            full_of=self._full_of,
            sites_are_full=self._site_room.full_since_ns is not None,
            regions_are_full=self._region_room.full_since_ns is not None,
        )

    def _may_be_older(self) -> bool:
        """Whether the process had room for as many blocks, before the attach, as frees of them were counted.

        If not, the frees are of something else: a preloaded wrapper that puts a header before each block
        passes on other addresses to `free` than it got.
        """
        if self._unmatched_frees is None or self._first_memory_bytes is None:
            return True
        frees = self._unmatched_frees.last - self._unmatched_frees.at(self._unmatched_frees.first_ns)
        return frees <= self._first_memory_bytes // _SMALLEST_BLOCK_BYTES

    def full_since_s(self, table: SiteTable) -> float | None:
        """Since when blocks are refused because a table is full (`full_of`); None if there is room."""
        since_ns = self.full_since_ns
        return None if since_ns is None else (since_ns - table.began_ns) / 1e9

    @property
    def full_of(self) -> str:
        """What the full table is of: LIVE_BLOCKS or THREADS."""
        return self._full_of

    @property
    def full_since_ns(self) -> int | None:
        """The same, as a time."""
        return self._room.full_since_ns

    def intervals_bytes(self, table: SiteTable) -> NDArray[np.float64] | None:
        """The coarsest sampling interval in each bin of the timeline; None if it never changed."""
        if self._intervals is None or len(self._intervals) < 2:
            return None
        times_ns, intervals = np.array(self._intervals.points).T
        edges_ns = table.timeline.edges_ns
        at = np.maximum(np.searchsorted(times_ns, edges_ns, side="right") - 1, 0)
        return np.array(
            [intervals[first : last + 1].max() for first, last in pairwise(at.tolist())], np.float64
        )

    @property
    def collected_ns(self) -> NDArray[np.int64] | None:
        """The times of reported collections; None if sites are read at every tick."""
        if self._collections is None:
            return None
        return np.array([time_ns for time_ns, _count in self._collections.points[1:]], np.int64)

    def collected_s(self, table: SiteTable) -> NDArray[np.float64] | None:
        """The same, in seconds since the recording began."""
        return None if (times_ns := self.collected_ns) is None else table.since_began_s(times_ns)

    def memory(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The first readings in the bins of time (s), and the least memory in each (bytes).

        Empty if none was noted. What rises is least at the first reading.
        """
        if self._memory is None:
            return np.zeros(0), np.zeros(0)
        memory = self._memory.columns(_ONLY_ROW)
        return memory.firsts_s, memory.low_bytes[:, 0]


class _Room:
    """Whether a table has room, from the numbers of refused and recorded entries so far."""

    def __init__(self) -> None:
        self.full_since_ns: int | None = None
        self._began_ns: int | None = None
        self._readings = 0
        self._refused_ns = 0
        self._last: tuple[int, int, int] | None = None

    def note(self, now_ns: int, refused: int, recorded: int) -> None:
        last_ns, last_refused, last_recorded = self._last or (now_ns, refused, recorded)
        self._last = now_ns, refused, recorded
        gained_refused, gained = refused - last_refused, recorded - last_recorded
        if gained_refused:
            self._refused_ns = now_ns
        if gained_refused > _FULL_SHARE * (gained_refused + gained):
            self._began_ns = last_ns if self._began_ns is None else self._began_ns
            self._readings += 1
            if self._readings >= _FULL_READINGS and self.full_since_ns is None:
                self.full_since_ns = self._began_ns
        elif gained:
            self._began_ns, self._readings = None, 0
            if now_ns - self._refused_ns > _ROOM_AFTER_NS:
                self.full_since_ns = None


def _refused(counters: ProcessCounters) -> int:
    """How many blocks were not recorded for lack of room."""
    return counters.losses["live_full"] + counters.losses["thread_full"]


def _frees_of_older_blocks(counters: ProcessCounters, heap: SiteCounters) -> int:
    """How many blocks from before the attach have been freed since.

    While every block is recorded, these are the frees of unknown blocks. While blocks are sampled, most
    unknown blocks are younger; but the process' gain of blocks is counted, and any gain that its sites seem
    to have beyond that was freed from older memory. This is as good as the estimates of the sites, and may be
    negative.
    """
    if not counters.was_sampled or counters.inside_interval_bytes:
        # Some of these frees may have been of refused blocks.
        return counters.unmatched_frees - _refused(counters)
    return counters.unmatched_frees + heap.live_count - counters.gained_blocks


def _variances(table: SiteTable) -> tuple[float, float]:
    """The variances, in blocks^2, of the gain of heap sites in a third of the time.

    The first is that of sites that grow steadily, the second that of sites that also free.
    """
    if not table.heap_totals.live_count_variance:
        return 0.0, 0.0
    columns = table.columns()[table.are_heap(np.arange(len(table)))]
    live, allocated, units = (columns[:, COUNTERS.index(name)] for name in _OF_ESTIMATES)
    freed_share = np.clip(1 - live / np.maximum(allocated, 1), 0.0, 1.0)
    variance = np.maximum(units, 0) * COUNT_VARIANCE_UNIT
    # Sites that free compare two estimates: then and now.
    return float(((1 - freed_share) * variance).sum()) / 3, float((2 * freed_share * variance).sum())
