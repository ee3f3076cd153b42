"""The latest verdicts on the call sites of one traced process.

Rules:
  - Verdicts are not computed at every tick, but every few seconds; less often after a long observation, and
    if that takes long (pacing.py). Requests meanwhile get the last verdict.
  - All are judged together, but only those whose verdict may have changed are measured again.
  - Only sites with live blocks are measured. The others freed all blocks, which decides their verdict.
  - A leak is announced once, when two verdicts in a row say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.model.history import StoredHistory
from bpfleakd.model.limit import MemoryLimit
from bpfleakd.model.report import SiteReport
from bpfleakd.model.site import SiteKey
from bpfleakd.model.verdict import VERDICTS, ProcessVerdict, SiteVerdict, Verdict, churn_words
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.judging.earlier_leaks import ExpectedLeaks, KnownSite, leaks_by_site
from bpfleakd.tracing.judging.function_sums import charged_to_several, judged_by_sums
from bpfleakd.tracing.judging.history_source import Blocks, HistorySource
from bpfleakd.tracing.judging.observations import Observations, ObservationsCheckpoint
from bpfleakd.tracing.judging.pacing import VerdictPacing
from bpfleakd.tracing.managed_heap import HeapTracking
from bpfleakd.tracing.owned_memory import OwnedGrowth
from bpfleakd.tracing.site_charging import SiteIdentity
from bpfleakd.verdicts.managed_heap import with_managed_heap
from bpfleakd.verdicts.measured_sites import MeasuredSites
from bpfleakd.verdicts.measurement import LEAK_AFTER_S, first_leak_s, persistence_of
from bpfleakd.verdicts.merged_histories import Units
from bpfleakd.verdicts.process_verdict import FoundGrowth, classify_process
from bpfleakd.verdicts.seen_leaks import SeenLeak, SeenLeaks
from bpfleakd.verdicts.site_verdict import Classification, classify_sites
from bpfleakd.verdicts.stored_history import STORED_VERSION, stored_sites

_NS_PER_S = 1_000_000_000
# An evaluation that may coincide with the end of a process shows its last moments. The previous one is kept
# for that case, unless it has very many sites, which take 250 bytes each.
_LAST_MOMENTS_NS = 2 * _NS_PER_S
_LATELY_NS = 90 * _NS_PER_S
_KEPT_TWICE_MAX = 20_000

NOT_YET = SiteVerdict(Verdict.UNKNOWN, 0.0, "not judged yet", 0.0)
_NO_BLOCKS = 0.9
_LEAKS, _GROWS = 2, 1
_NO_ROWS = np.zeros(0, np.intp)


class VerdictsCheckpoint(Struct, frozen=True):
    """The stored data; `announced` are rows of announced leaks, `leaks` all known ones by row."""

    observations: ObservationsCheckpoint
    announced: list[int]
    leaks: dict[int, SeenLeak] = {}


class _Evaluation(Struct, frozen=True):
    """The result at `at_ns`.

    By row of the table: its position in the classification (-1: it had no live blocks), whether it represents
    those that are judged with it, and whether there are any. By position, `summed` is the number of sites of
    a function that are judged by their sum there; 0: a single site.
    """

    at_ns: int
    classification: Classification
    positions: NDArray[np.intp]
    leads: NDArray[np.bool_]
    are_joint: NDArray[np.bool_]
    summed: NDArray[np.intp]

    def position(self, row: int) -> int:
        return int(self.positions[row]) if row < len(self.positions) else -1


class SiteVerdicts:
    """The verdicts on the sites of a table, by row."""

    def __init__(
        self, leak_after_s: float = LEAK_AFTER_S, spent_ns: Callable[[], int] = time.thread_time_ns
    ) -> None:
        self.leak_after_s = self._leak_after_s = leak_after_s
        self.observed = Observations()
        self._pacing = VerdictPacing(first_leak_s(leak_after_s), spent_ns)
        self._latest: _Evaluation | None = None
        self._before: _Evaluation | None = None
        self._is_final = False
        self._measured = MeasuredSites()
        self._seen_leaks = SeenLeaks()
        self._expected = ExpectedLeaks()
        self._leaking: set[int] = set()
        self._announced: set[int] = set()

    def checkpoint(self, rows: NDArray[np.intp]) -> VerdictsCheckpoint:
        """The data to save; rows become places in `rows`."""
        places = {row: place for place, row in enumerate(rows.tolist())}
        announced = [place for row, place in places.items() if row in self._announced]
        leaks = {places[row]: leak for row, leak in self._seen_leaks.of(places).items()}
        return VerdictsCheckpoint(self.observed.checkpoint(), announced, leaks)

    @classmethod
    def restored(cls, checkpoint: VerdictsCheckpoint, leak_after_s: float) -> SiteVerdicts:
        """Restore saved verdicts. Raises ValueError if they are inconsistent."""
        verdicts = cls(leak_after_s)
        verdicts.observed = Observations.restored(checkpoint.observations)
        verdicts._announced = set(checkpoint.announced)
        verdicts._seen_leaks = SeenLeaks(checkpoint.leaks)
        return verdicts

    def note_memory(
        self, now_ns: int, began_ns: int, anonymous_bytes: int | None, *, has_runtime: bool
    ) -> None:
        """Record the anonymous memory of the process; None if it cannot be read."""
        self.observed.note_memory(now_ns, began_ns, anonymous_bytes)
        # The heap of a runtime may fill while its memory stays the same.
        self._pacing.note_memory(None if has_runtime else anonymous_bytes)

    def is_due(self, now_ns: int, began_ns: int, *, processes: int = 1, asked: bool = False) -> bool:
        """Whether the next evaluation is due (`VerdictPacing.is_due`)."""
        return not self._is_final and self._pacing.is_due(now_ns, began_ns, processes=processes, asked=asked)

    def want(self, now_ns: int, live_blocks: int, sites: int) -> bool:
        """Whether to evaluate now for a request (`VerdictPacing.want`)."""
        return self._latest is None or self._pacing.want(now_ns, live_blocks, sites)

    def settle(self, ended_ns: int) -> bool:
        """Make the previous verdicts final, since the process has ended. False if there are none.

        The frees of a process as it ends (exit handlers, destructors, an interpreter that shuts down) prove
        nothing about its time before, so an evaluation of its last moments does not count.
        """
        before = self._before
        if before is not None and ended_ns - before.at_ns > _LATELY_NS:
            before = None
        if self._latest is None or ended_ns - self._latest.at_ns < _LAST_MOMENTS_NS:
            self._latest = before or self._latest
        self._is_final = self._latest is not None
        return self._is_final

    def compute(
        self,
        table: SiteTable,
        blocks: Blocks,
        clock_ns: Callable[[], int],
        units: Units | None = None,
        functions: Units | None = None,
    ) -> list[int]:
        """Judge all sites; `blocks` are all live ones (LIVE_BLOCK records, kinds by BLOCK_KINDS).

        Rows of one of the `units` are one site. Sites of one of the `functions` are judged by their sum, too.
        Returns the rows of sites that have newly turned out to leak.
        """
        began_ns = clock_ns()
        self._pacing.begin(began_ns)
        live = table.columns()[:, COUNTERS.index("live_count")] > 0
        rows = np.flatnonzero(live)
        if not len(rows) or not len(table.timeline):
            self._before, self._latest = self._latest or self._before, None
            return []
        now_s = float(table.since_began_s(table.timeline.edges_ns[-1:])[0])
        changed_ns = table.changed_ns(np.arange(len(table)))
        if units is not None:
            rows, changed_ns = np.unique(units.lead[rows]), units.latest(changed_ns)
        due = self._measured.due(rows, table.since_began_s(changed_ns[rows]), now_s)
        groups = charged_to_several(functions, rows)
        wanted = units.members(due)[0] if units is not None else due
        if functions is not None and len(groups):
            wanted = np.union1d(wanted, functions.members(groups)[0])
        source = HistorySource.of(table, blocks, wanted, self.observed)
        for chunk in source.parts(due, units):
            histories = source.histories(chunk, units)
            self._measured.keep(chunk, persistence_of(histories, self._leak_after_s), now_s)
        context = self.observed.context(table)
        found = classify_sites(self._measured.of(rows, now_s, self._leak_after_s), context)
        positions = np.full(len(table), -1)
        positions[rows] = np.arange(len(rows))
        leads = positions >= 0
        if functions is not None and len(groups):
            where = positions if units is None else positions[units.lead]
            of_sums, settled = judged_by_sums(source, functions, groups, found, where, context)
            for place, taken in settled:
                # The one that grows fastest stands for all.
                fastest = taken[np.argsort(-found.leak_bytes_per_s[positions[taken]], kind="stable")]
                positions[taken] = len(rows) + place
                leads[fastest[1:]] = False
            found = found.joined(of_sums)
        are_joint = np.zeros(len(table), bool)
        if units is not None:
            positions = positions[units.lead]
            are_joint = np.bincount(units.lead, minlength=len(table))[units.lead] > 1
        if self._latest is not None and len(rows) <= _KEPT_TWICE_MAX:
            self._before = self._latest
        summed = np.bincount(positions[positions >= 0], minlength=len(found.codes))
        summed[: len(rows)] = 0
        self._latest = _Evaluation(began_ns, found, positions, leads, are_joint, summed)
        self._settle_leaks(table, rows)
        new = self._announce(rows)
        self._pacing.end(is_unconfirmed=not self._leaking <= self._announced)
        return new

    def go_on_with(self, leaks: Mapping[KnownSite, SeenLeak]) -> None:
        """Set the leaks of an earlier window."""
        self._expected = ExpectedLeaks(leaks)

    def recall(self, table: SiteTable, identities: Mapping[SiteKey, SiteIdentity]) -> None:
        """Find the leaks of an earlier window among the sites whose identity is settled."""
        for row, leak in self._expected.take(table, identities).items():
            self._seen_leaks.expect(row, leak)
            self._announced.add(row)

    def known_leaks(
        self, table: SiteTable, identities: Mapping[SiteKey, SiteIdentity]
    ) -> dict[KnownSite, SeenLeak]:
        """The leaks according to the last verdicts, for the next window."""
        ranks, _rates = self.ranks(rows := np.arange(len(table)))
        seen = self._seen_leaks.of(rows[ranks == _LEAKS].tolist())
        return leaks_by_site(table, identities, seen)

    def forget(self, rows: NDArray[np.intp]) -> None:
        """Forget rows that other sites may reuse."""
        for evaluation in (self._latest, self._before):
            if evaluation is not None:
                known = rows[rows < len(evaluation.positions)]
                evaluation.positions[known] = -1
                evaluation.leads[known] = False
        self._measured.forget(rows)
        for row in rows.tolist():
            self._seen_leaks.forget(row)
        self._leaking.difference_update(rows.tolist())
        self._announced.difference_update(rows.tolist())

    def _settle_leaks(self, table: SiteTable, rows: NDArray[np.intp]) -> None:
        """Keep the leaks from before that nothing contradicts."""
        assert self._latest is not None
        positions, leads = self._latest.positions, self._latest.leads
        # The rate of sites that are judged together is stored once.
        for row in rows[self._seen_leaks.are_known(rows) & ~leads[rows]].tolist():
            self._seen_leaks.forget(row)
        sites = np.full(len(positions), -1)
        leading = rows[leads[rows]]
        sites[leading] = positions[leading]
        intervals_bytes = self.observed.intervals_bytes(table)
        ends_s = table.since_began_s(table.timeline.edges_ns[1:])
        if intervals_bytes is None:
            intervals_bytes = np.zeros(len(ends_s))
        self._seen_leaks.settle(self._latest.classification, sites, ends_s, intervals_bytes)

    def of(self, row: int, live_count: int, allocated_count: int) -> SiteVerdict:
        """The verdict on the site in a row of the table with these counters."""
        latest = self._latest
        position = latest.position(row) if latest else -1
        if latest is not None and position >= 0 and (live_count or self._is_final or latest.are_joint[row]):
            verdict = latest.classification.of(position)
            if self._is_final and live_count < latest.classification.measured.live_count[position] / 2:
                verdict = replace(verdict, reason=f"{verdict.reason}; freed as the process ended")
            if (count := int(latest.summed[position])) > 1:
                verdict = replace(
                    verdict, reason=f"{count} call sites of this function together: {verdict.reason}"
                )
            # The rate is that of all sites that are judged together.
            return verdict if latest.leads[row] else replace(verdict, leak_bytes_per_s=0.0)
        if allocated_count > live_count:
            # It had no blocks when it was checked.
            return SiteVerdict(Verdict.CHURN, _NO_BLOCKS, churn_words(live_count, allocated_count), 0.0)
        return NOT_YET

    def of_process(
        self,
        table: SiteTable,
        limits: Sequence[MemoryLimit],
        suppressed: NDArray[np.intp] = _NO_ROWS,
        heap: HeapTracking | None = None,
        garbage_share: float = 0.0,
    ) -> ProcessVerdict:
        """The verdict on the whole process under these limits; sites in rows `suppressed` are ignored.

        Those that commit the managed `heap` do not either: its collections say what becomes of it. Where
        blocks are not known one by one, a collector lets garbage of that share of what is live gather. The
        runtime's own memory may grow, as long as it does not leak.
        """
        found, committed = self._growth_found(table, suppressed, heap, garbage_share)
        full_since_s = self.observed.full_since_s(table)
        verdict = classify_process(
            *self.observed.memory(), found, limits, full_since_s, self.observed.full_of
        )
        if heap is None or (judged := heap.of_process) is None:
            return verdict
        return with_managed_heap(verdict, judged, committed, found)

    def _growth_found(
        self,
        table: SiteTable,
        suppressed: NDArray[np.intp],
        heap: HeapTracking | None,
        garbage_share: float,
    ) -> tuple[FoundGrowth, float]:
        """What the sites gain, and what those gain that commit the managed heap, in bytes per second."""
        if self._latest is None or not self._latest.classification.has_growth:
            return FoundGrowth(0, 0.0, 0.0), 0.0
        rows = table.memory_rows
        ranks, rates = self.ranks(rows)
        committed = of_runtime = 0.0
        if heap is not None and heap.heap is not None:
            commits = np.isin(rows, heap.rows)
            committed = float(rates[commits & (ranks > 0)].sum())
            is_own = np.isin(rows, heap.own) & (ranks == _GROWS)
            of_runtime = float(rates[is_own].sum())
            ranks[commits | is_own] = 0
        if heap is not None:
            ranks[np.isin(rows, list(heap.owned.unconfirmed)) & (ranks == _LEAKS)] = _GROWS
        # Sites that are judged together count once.
        is_known = rows < len(self._latest.leads)
        ranks[is_known] *= self._latest.leads[rows[is_known]]
        known = np.isin(rows, suppressed)
        of_suppressed = float(rates[known & (ranks > 0)].sum())
        ranks[known] = 0
        ranks[np.isin(rows, table.stack_rows) & (ranks == _LEAKS)] = 0
        found = FoundGrowth(
            self._judged_by(rows[ranks == _LEAKS]),
            float(rates[ranks == _LEAKS].sum()),
            float(rates[ranks == _GROWS].sum()),
            of_suppressed,
            garbage_share * float(rates[~table.have_blocks(rows) & (ranks > 0)].sum()),
            of_runtime,
            *self._leaks_in(np.setdiff1d(table.file_rows, suppressed)),
            *self._leaks_in(np.setdiff1d(table.stack_rows, suppressed)),
        )
        return found, committed

    def _leaks_in(self, rows: NDArray[np.intp]) -> tuple[int, float]:
        """How many sites in these rows leak, and how fast."""
        ranks, rates = self.ranks(rows)
        leaks = ranks == _LEAKS
        if self._latest is not None:
            is_known = rows < len(self._latest.leads)
            leaks[is_known] &= self._latest.leads[rows[is_known]]
        return self._judged_by(rows[leaks]), float(rates[leaks].sum())

    def _judged_by(self, leading: NDArray[np.intp]) -> int:
        """How many sites the verdicts on these rows cover."""
        sites = np.ones(len(leading), np.intp)
        if self._latest is not None:
            known = np.flatnonzero(leading < len(self._latest.positions))
            positions = self._latest.positions[leading[known]]
            judged = positions >= 0
            sites[known[judged]] = np.maximum(self._latest.summed[positions[judged]], 1)
        return int(sites.sum())

    def history(
        self,
        table: SiteTable,
        blocks: Blocks | None,
        limits: Sequence[MemoryLimit],
        sites: Sequence[tuple[int, SiteReport]],
        comm: str,
        suppressed: NDArray[np.intp] = _NO_ROWS,
    ) -> StoredHistory:
        """The input of the verdicts on some sites, given with their rows in the table.

        `blocks` are all live blocks; None omits the survivors.
        """
        context = self.observed.context(table)
        rows = np.array([row for row, _site in sites], np.intp)
        order = np.argsort(rows)
        known, collected_s = None, self.observed.collected_s(table)
        if len(rows):
            source = HistorySource.of(table, blocks or (), rows, self.observed)
            known = source.whole(rows[order])
            if blocks is None:
                known = replace(known, survivors_count=None, survivors_bytes=None)
        memory_s, memory_bytes = self.observed.memory()
        return StoredHistory(
            version=STORED_VERSION,
            comm=comm,
            leak_after_s=self._leak_after_s,
            replaced_count=context.replaced_count,
            growth_variance=round(context.growth_variance, 3),
            churn_variance=round(context.churn_variance, 3),
            lost_frees=context.lost_frees,
            lost_blocks=context.lost_blocks,
            unread_s=round(context.unread_s, 3),
            full_s=round(context.full_s, 3),
            full_of=context.full_of,
            intervals_bytes=_figures(known.intervals_bytes if known else None),
            collected_s=None if collected_s is None else _figures(collected_s),
            ends_s=_figures(known.ends_s if known else None),
            memory_s=_figures(memory_s),
            memory_bytes=_figures(memory_bytes),
            limits=tuple(limits),
            firsts_s=_figures(known.firsts_s if known else None),
            allocated_count=_figures(known.allocated_count if known else None),
            sites=stored_sites(known, np.argsort(order), sites, set(suppressed.tolist())),
        )

    def ranks(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
        """Keys for sorting rows of the table: 2 for a leak, 1 for a growing site, else 0; and their rates."""
        ranks, rates = np.zeros(len(rows), np.int8), np.zeros(len(rows))
        latest = self._latest
        if latest is None or not latest.classification.has_growth:
            return ranks, rates
        known = np.flatnonzero(rows < len(latest.positions))
        known = known[latest.positions[rows[known]] >= 0]
        positions = latest.positions[rows[known]]
        codes = latest.classification.codes[positions]
        ranks[known] = np.select(
            [codes == VERDICTS.index(Verdict.LEAK), codes == VERDICTS.index(Verdict.GROWING)],
            [_LEAKS, _GROWS],
            0,
        )
        rates[known] = latest.classification.leak_bytes_per_s[positions] * latest.leads[rows[known]]
        return ranks, rates

    def growth_of(self, row: int) -> OwnedGrowth:
        """The steady growth that makes a site a leak; empty if there is currently no evidence."""
        position = self._latest.position(row) if self._latest else -1
        if self._latest is None or position < 0:
            return OwnedGrowth(0.0, 0.0, 0.0)
        measured = self._latest.classification.measured
        # Survivors show growth through excursions. The end of the window is not stored, so this assumes the
        # latest.
        excursion_s = 0.0 if measured.by_survivors[position] else float(measured.excursion_s[position])
        end_s = measured.observed_s - excursion_s
        start_s = end_s - float(measured.window_s[position])
        gained_bytes, gained_count = measured.gained_bytes[position], measured.gained_count[position]
        return OwnedGrowth(start_s, end_s, float(gained_bytes), float(gained_count))

    def _announce(self, rows: NDArray[np.intp]) -> list[int]:
        assert self._latest is not None
        leaks = self._latest.classification.leaks[self._latest.positions[rows]] & self._latest.leads[rows]
        leaking = set(rows[leaks].tolist())
        new = (leaking & self._leaking) - self._announced
        self._announced |= new
        self._leaking = leaking
        return sorted(new)


def _figures(column: NDArray[Any] | None) -> tuple[Any, ...]:
    return () if column is None else tuple(column.tolist())
