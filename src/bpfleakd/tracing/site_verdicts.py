"""The verdicts on the call sites of one traced process, as of the last time that they were computed.

Rules:
  - Nothing is judged at every tick: every few seconds, less often what has been watched for long, and where
    that takes long (`_SHARE` of the time, for all processes). Who asks meanwhile gets the last verdict.
  - All are judged together, but only those measured again that may have become something else.
  - Only sites with live blocks are measured. Of the others all blocks were freed, which is all there is to
    say of them.
  - A leak is announced once, when two verdicts in a row say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpfleakd.analysis.managed_heap import with_managed_heap
from bpfleakd.analysis.measured_sites import MeasuredSites
from bpfleakd.analysis.persistence import LEAK_AFTER_S, SiteHistories, persistence_of
from bpfleakd.analysis.process_verdict import FoundGrowth, classify_process
from bpfleakd.analysis.stored_history import STORED_VERSION
from bpfleakd.analysis.verdict import VERDICTS, Classification, Context, classify_sites
from bpfleakd.kernel.maps import ProcessCounters
from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.limit import MemoryLimit
from bpfleakd.model.report import SiteReport
from bpfleakd.model.site import SiteKey
from bpfleakd.model.verdict import ProcessVerdict, SiteVerdict, Verdict
from bpfleakd.table.estimates import COUNT_VARIANCE_UNIT
from bpfleakd.table.history import History
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.table.survivors import Survivors, count_survivors
from bpfleakd.table.table_checkpoint import TimelineCheckpoint
from bpfleakd.table.timeline import Timeline
from bpfleakd.tracing.managed_heap import HeapTracking
from bpfleakd.tracing.regions import BLOCK_KINDS

__all__ = ["NOT_YET", "SiteVerdicts", "VerdictsCheckpoint"]

_NS_PER_S = 1_000_000_000
_PAUSE_NS = 5 * _NS_PER_S
# What begins to leak after long is told apart no sooner than in a part of that time.
_PAUSE_OF_OBSERVED = 1 / 24
_LONGEST_PAUSE_NS = 30 * _NS_PER_S
_PAUSE_WHEN_ASKED_NS = _NS_PER_S
# The part of the time that may go into verdicts that nobody asked for, and into those that somebody did.
_SHARE = 0.008
_SHARE_WHEN_ASKED = 0.05
# A million blocks take 0.8 s, and a call site as much as 15 blocks: who asks gets the last verdict where that
# is too long, and the next tick makes a new one.
_BLOCKS_WAITED_FOR = 300_000
_BLOCKS_A_SITE = 15
_CHUNK_SITES = 2048
# Of fewer sites than that their blocks are looked for, to count them alone.
_FEW_SHARE = 0.25

NOT_YET = SiteVerdict(Verdict.UNKNOWN, 0.0, "not looked at yet", 0.0)
_NO_BLOCKS = 0.9
_LEAKS, _GROWS = 2, 1
_ONLY_ROW = np.zeros(1, np.intp)
_NO_ROWS = np.zeros(0, np.intp)

Blocks = Iterable[NDArray[np.void]]


@dataclass(frozen=True, slots=True)
class VerdictsCheckpoint:
    """What is written down of them: points of histories, and the rows of leaks that were announced."""

    unmatched_frees: list[tuple[int, int]]
    lost_blocks: list[tuple[int, int]]
    announced: list[int]
    memory: TimelineCheckpoint | None


class SiteVerdicts:
    """The verdicts on the sites of a table, by row."""

    def __init__(self, leak_after_s: float = LEAK_AFTER_S) -> None:
        self.leak_after_s = self._leak_after_s = leak_after_s
        self._unmatched_frees: History | None = None
        self._lost_blocks: History | None = None
        self._lost_frees = 0
        self._is_sampled = False
        self._computed_ns = 0
        self._took_ns = 0
        self._is_wanted = False
        self._classification: Classification | None = None
        self._measured = MeasuredSites()
        self._memory: Timeline | None = None
        # Where a row of the table is in the judgement; -1: it had no live blocks.
        self._positions: NDArray[np.intp] = np.zeros(0, np.intp)
        self._leaking: set[int] = set()
        self._announced: set[int] = set()

    def checkpoint(self, rows: NDArray[np.intp]) -> VerdictsCheckpoint:
        """What is to be written down; rows are from now on places in `rows`."""
        return VerdictsCheckpoint(
            self._unmatched_frees.points if self._unmatched_frees else [],
            self._lost_blocks.points if self._lost_blocks else [],
            [place for place, row in enumerate(rows.tolist()) if row in self._announced],
            self._memory.checkpoint(_ONLY_ROW) if self._memory else None,
        )

    @classmethod
    def restored(cls, checkpoint: VerdictsCheckpoint, leak_after_s: float) -> SiteVerdicts:
        """Verdicts that go on with what was known. ValueError if it makes no sense."""
        verdicts = cls(leak_after_s)
        if checkpoint.unmatched_frees:
            verdicts._unmatched_frees = History.of(checkpoint.unmatched_frees)
            verdicts._lost_blocks = History.of(checkpoint.lost_blocks)
        verdicts._announced = set(checkpoint.announced)
        if checkpoint.memory is not None:
            verdicts._memory = Timeline.restored(checkpoint.memory)
        return verdicts

    def note(self, now_ns: int, counters: ProcessCounters) -> None:
        """Remember what the process' counters were."""
        lost_blocks = counters.losses["live_full"] + counters.losses["thread_full"]
        if self._unmatched_frees is None or self._lost_blocks is None:
            self._unmatched_frees = History(now_ns, counters.unmatched_frees)
            self._lost_blocks = History(now_ns, lost_blocks)
        self._unmatched_frees.append(now_ns, counters.unmatched_frees)
        self._lost_blocks.append(now_ns, lost_blocks)
        self._lost_frees = counters.losses["free_missed"]
        self._is_sampled = counters.was_sampled

    def note_memory(self, now_ns: int, began_ns: int, anonymous_bytes: int | None) -> None:
        """Remember how much anonymous memory the process has; None if it cannot be read."""
        if anonymous_bytes is None:
            return
        if self._memory is None:
            self._memory = Timeline(began_ns)
        figures = np.array([anonymous_bytes]), np.zeros(1, np.int64), np.zeros(1, np.int64)
        self._memory.update(now_ns, _ONLY_ROW, *figures)

    def is_due(self, now_ns: int, began_ns: int, *, processes: int = 1, asked: bool = False) -> bool:
        """Whether it is time to compute them again, of a process observed since then, one of so many.

        Sooner if somebody asks, or has asked and did not wait (`want`).
        """
        asked = asked or self._is_wanted
        busy_ns = round(self._took_ns * processes / (_SHARE_WHEN_ASKED if asked else _SHARE))
        aged_ns = min(round((now_ns - began_ns) * _PAUSE_OF_OBSERVED), _LONGEST_PAUSE_NS)
        pause_ns = _PAUSE_WHEN_ASKED_NS if asked else max(_PAUSE_NS, aged_ns)
        return now_ns - self._computed_ns >= max(pause_ns, busy_ns)

    def want(self, live_blocks: int, sites: int) -> bool:
        """Somebody asks: whether to compute them now; if that takes long, the next tick is to do it."""
        takes_long = live_blocks + _BLOCKS_A_SITE * sites > _BLOCKS_WAITED_FOR
        self._is_wanted = self._classification is not None and takes_long
        return not self._is_wanted

    def compute(self, table: SiteTable, blocks: Blocks, clock_ns: Callable[[], int]) -> list[int]:
        """Judge all sites; `blocks` are all that live (LIVE_BLOCK records, kinds by BLOCK_KINDS).

        Returns the rows of sites that have turned out to leak.
        """
        began_ns = self._computed_ns = clock_ns()
        self._is_wanted = False
        live = table.columns()[:, COUNTERS.index("live_count")] > 0
        rows = np.flatnonzero(live)
        if not len(rows) or not len(table.timeline):
            self._classification, self._positions = None, np.full(len(table), -1)
            return []
        now_s = float(table.since_began_s(table.timeline.edges_ns[-1:])[0])
        due = self._measured.due(rows, table.since_began_s(table.changed_ns(rows)), now_s)
        if len(due):
            survivors, of_survivors = self._survivors(table, blocks, due)
            for start in range(0, len(due), _CHUNK_SITES):
                chunk = due[start : start + _CHUNK_SITES]
                histories = _histories(table, chunk, survivors, of_survivors)
                self._measured.keep(chunk, persistence_of(histories, self._leak_after_s), now_s)
        self._classification = classify_sites(
            self._measured.of(rows, now_s, self._leak_after_s), self._context(table)
        )
        self._positions = np.where(live, np.cumsum(live) - 1, -1)
        self._took_ns = clock_ns() - began_ns
        return self._announce(rows)

    def of(self, row: int, live_count: int, allocated_count: int) -> SiteVerdict:
        """The verdict on the site in a row of the table, which has these counters."""
        if live_count == 0 and allocated_count:
            return SiteVerdict(
                Verdict.CHURN, _NO_BLOCKS, f"all {allocated_count:,} blocks were freed again", 0.0
            )
        position = int(self._positions[row]) if row < len(self._positions) else -1
        if self._classification is not None and position >= 0:
            return self._classification.of(position)
        if allocated_count > live_count:
            # There were none when it was looked at.
            freed = f"{allocated_count - live_count:,} of {allocated_count:,} blocks were freed again"
            return SiteVerdict(Verdict.CHURN, _NO_BLOCKS, freed, 0.0)
        return NOT_YET

    def of_process(
        self,
        table: SiteTable,
        limits: Sequence[MemoryLimit],
        suppressed: NDArray[np.intp] = _NO_ROWS,
        heap: HeapTracking | None = None,
    ) -> ProcessVerdict:
        """The verdict on the whole process, under these limits; sites in rows `suppressed` never make it.

        Those that commit the managed `heap` do not either: its collections say what becomes of it.
        """
        rows = table.memory_rows
        ranks, rates = self.ranks(rows)
        committed = 0.0
        if heap is not None and heap.heap is not None:
            commits = np.isin(rows, heap.rows)
            committed = float(rates[commits & (ranks > 0)].sum())
            ranks[commits] = 0
        known = np.isin(rows, suppressed)
        of_suppressed = float(rates[known & (ranks > 0)].sum())
        ranks[known] = 0
        found = FoundGrowth(
            int((ranks == _LEAKS).sum()),
            float(rates[ranks == _LEAKS].sum()),
            float(rates[ranks == _GROWS].sum()),
            of_suppressed,
        )
        times_s = low_bytes = np.zeros(0)
        if self._memory is not None:
            memory = self._memory.columns(_ONLY_ROW)
            times_s, low_bytes = memory.ends_s, memory.low_bytes[:, 0]
        verdict = classify_process(times_s, low_bytes, found, limits)
        if heap is None or heap.heap is None:
            return verdict
        return with_managed_heap(verdict, heap.heap, committed, found)

    def history(
        self,
        table: SiteTable,
        blocks: Blocks | None,
        limits: Sequence[MemoryLimit],
        sites: Sequence[tuple[int, SiteReport]],
        comm: str,
        suppressed: NDArray[np.intp] = _NO_ROWS,
    ) -> StoredHistory:
        """What the verdicts are made of, of some sites with their rows in the table.

        `blocks` are all that live; None leaves out who survives.
        """
        context = self._context(table)
        rows = np.array([row for row, _site in sites], np.intp)
        order = np.argsort(rows)
        survivors_of = self._survivors(table, blocks or (), rows)
        known = _histories(table, rows[order], *survivors_of) if len(rows) else None
        checkpoint = []
        hidden = set(suppressed.tolist())
        for place, (row, site) in zip(np.argsort(order), sites, strict=True):
            assert known is not None

            def figures(column: NDArray[Any] | None, place: int = place) -> tuple[Any, ...]:
                return () if column is None else tuple(column[:, place].tolist())

            module = (site.module or "").rpartition("/")[2] or None
            weight = float(known.weight[place]) if known.weight is not None else 1.0
            checkpoint.append(
                StoredSite(
                    site=site.site,
                    kind=site.kind,
                    function=site.function,
                    module=module,
                    live_bytes=site.live_bytes,
                    live_count=site.live_count,
                    low_bytes=figures(known.low_bytes),
                    low_count=figures(known.low_count),
                    born_count=figures(known.born_count),
                    survivors_count=figures(known.survivors_count if blocks is not None else None),
                    survivors_bytes=figures(known.survivors_bytes if blocks is not None else None),
                    weight=weight,
                    suppressed=row in hidden,
                )
            )
        memory = self._memory.columns(_ONLY_ROW) if self._memory else None
        return StoredHistory(
            version=STORED_VERSION,
            comm=comm,
            leak_after_s=self._leak_after_s,
            replaced_count=context.replaced_count,
            lost_frees=context.lost_frees,
            lost_blocks=context.lost_blocks,
            unread_s=round(context.unread_s, 3),
            ends_s=tuple(known.ends_s.tolist()) if known else (),
            memory_s=tuple(memory.ends_s.tolist()) if memory else (),
            memory_bytes=tuple(memory.low_bytes[:, 0].tolist()) if memory else (),
            limits=tuple(limits),
            sites=tuple(checkpoint),
        )

    def ranks(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        """For sorting rows of the table: 2 for a leak, 1 for what grows, else 0; and their rates."""
        ranks, rates = np.zeros(len(rows), np.int8), np.zeros(len(rows))
        known = np.flatnonzero(rows < len(self._positions))
        known = known[self._positions[rows[known]] >= 0]
        if self._classification is not None:
            positions = self._positions[rows[known]]
            codes = self._classification.codes[positions]
            ranks[known] = np.select(
                [codes == VERDICTS.index(Verdict.LEAK), codes == VERDICTS.index(Verdict.GROWING)],
                [_LEAKS, _GROWS],
                0,
            )
            rates[known] = self._classification.leak_bytes_per_s[positions]
        return ranks, rates

    @staticmethod
    def _survivors(
        table: SiteTable, blocks: Blocks, rows: NDArray[np.intp]
    ) -> tuple[Survivors, NDArray[np.intp]]:
        """Of these rows at least, with the row of each site; -1 for those that are not in the table yet."""
        if len(rows) < _FEW_SHARE * len(table):
            keys = table.keys
            wanted = np.array([keys[row].stack_id for row in rows.tolist()], np.uint64)
            blocks = (batch[np.isin(batch["stack_id"], wanted)] for batch in blocks)
        survivors = count_survivors(blocks, table.timeline.edges_ns)
        sites = (SiteKey(BLOCK_KINDS[kind], stack_id) for kind, stack_id in survivors.sites())
        return survivors, np.array([table.row_of(site) for site in sites], np.intp)

    def _context(self, table: SiteTable) -> Context:
        lately_ns = table.updated_ns - (table.updated_ns - table.began_ns) // 3

        def gained(history: History | None) -> int:
            return history.last - history.at(max(lately_ns, history.first_ns)) if history else 0

        return Context(
            # In a sample, most frees are of blocks that are not in it.
            replaced_count=0 if self._is_sampled else gained(self._unmatched_frees),
            lost_frees=self._lost_frees,
            lost_blocks=gained(self._lost_blocks),
            unread_s=table.unread_s,
        )

    def _announce(self, rows: NDArray[np.intp]) -> list[int]:
        assert self._classification is not None
        leaking = set(rows[self._classification.codes == VERDICTS.index(Verdict.LEAK)].tolist())
        new = (leaking & self._leaking) - self._announced
        self._announced |= new
        self._leaking = leaking
        return sorted(new)


def _histories(
    table: SiteTable, rows: NDArray[np.intp], survivors: Survivors, of_survivors: NDArray[np.intp]
) -> SiteHistories:
    columns = table.timeline.columns(rows)
    counters = table.columns()[rows]
    index = np.searchsorted(rows, of_survivors)
    there = (of_survivors >= rows[0]) & (of_survivors <= rows[-1])
    there &= rows[np.minimum(index, len(rows) - 1)] == of_survivors
    live_count, live_bytes = survivors.matrices(np.where(there, index, -1), len(rows))
    return SiteHistories(
        columns.ends_s,
        columns.low_bytes,
        columns.low_count,
        columns.born_count,
        counters[:, COUNTERS.index("live_bytes")].astype(np.float64),
        counters[:, COUNTERS.index("live_count")].astype(np.float64),
        live_count,
        live_bytes,
        _weights(counters),
        table.are_heap(rows),
    )


def _weights(counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """How many blocks a recorded one of each site stands for: weight w adds w^2 - w to the variance."""
    variance = counters[:, COUNTERS.index("live_count_variance")] * COUNT_VARIANCE_UNIT
    weights: NDArray[np.float64] = 1 + np.maximum(variance, 0) / np.maximum(
        counters[:, COUNTERS.index("live_count")], 1
    )
    return weights
