"""Computes verdicts on traced processes, and determines which call sites are suppressed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import structlog

from bpfleakd.model.limit import MemoryLimit
from bpfleakd.model.process import ProcessState
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.queries.report import Reporter
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing import object_memory, owned_memory
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.java_memory import JavaUse, growth_by_use, use_of, with_uses
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.tracer import Tracer

log = structlog.get_logger()

# Limits the log of a program that leaks everywhere.
_LEAKS_ANNOUNCED = 20
_ANNOUNCE_PAUSE_NS = 600_000_000_000
# Sites to name at a time in search of suppressed ones: about a millisecond each.
_LOOKED_AT = 32
# The rank of a leak (`SiteVerdicts.ranks`).
_LEAKS, _GROWS = 2, 1
# Processes whose descriptors are read in parallel.
_RESOURCE_LOOKS_MAX = 2


class VerdictEngine(TracingObserver):
    """Computes verdicts from the tables when they are due, and finds suppressed sites."""

    def __init__(self, reporter: Reporter, tracer: Tracer) -> None:
        """The processes of `tracer` share the time that verdicts may take."""
        self._reporter = reporter
        self._tracer = tracer
        self._resource_looks = Background("resources", _RESOURCE_LOOKS_MAX)

    def collected(self, view: ProcessView) -> None:
        """Compute the verdicts of a process if they are due."""
        traced, now_ns = view.traced, view.clock_ns()
        traced.verdicts.note_memory(
            now_ns, traced.table.began_ns, traced.anonymous_bytes, has_runtime=traced.has_runtime
        )
        traced.resources.read(view.clock_ns, self._resource_looks)
        self._announce_resources(traced)
        if traced.verdicts.is_due(now_ns, traced.table.began_ns, processes=self._tracer.traced_count()):
            self.evaluate(view)
        elif traced.unannounced:
            self.announce(view)

    def evaluate(self, view: ProcessView) -> None:
        """Compute the verdicts on the sites of a process; new leaks go to the log."""
        traced = view.traced
        self._settle_identities(view)
        table, charging = traced.table, traced.charging
        traced.verdicts.recall(table, charging.identities)
        found = traced.verdicts.compute(
            table, view.all_blocks(), view.clock_ns, charging.units(table), charging.functions(table)
        )
        self._classify_heap(view)
        found = traced.heap.owned.announceable(found)
        leaks = traced.leaks_to_announce(found, view.clock_ns(), _ANNOUNCE_PAUSE_NS)[:_LEAKS_ANNOUNCED]
        self.look_for_suppressed(view, leaks)
        traced.process_verdict = self.process_verdict(traced, self._tracer.limits.read(traced.pid))
        self._announce_goroutines(traced)
        traced.unannounced += leaks
        self.announce(view)

    def announce(self, view: ProcessView) -> None:
        """Log new leaks, as soon as they have names, or when the process ends."""
        traced = view.traced
        keys = traced.table.keys
        leaks = traced.suppressions.shown(np.array(traced.unannounced, np.intp)).tolist()
        named = view.name(keys[row] for row in leaks)
        if traced.state is ProcessState.TRACED and any(one.stack.pending for one in named.values()):
            return
        traced.unannounced = []
        self.look_for_suppressed(view, leaks)
        shown = traced.suppressions.shown(np.array(leaks, np.intp))
        leaks = np.setdiff1d(shown, traced.heap.rows).tolist()
        if not leaks:
            return
        for site in self._reporter.sites(view, leaks, view.clock_ns()):
            log.warning(
                "site.leak",
                pid=traced.pid,
                comm=traced.attachment.process.comm,
                site=site.site,
                function=site.function,
                leak_bytes_per_s=site.leak_bytes_per_s,
                confidence=site.confidence,
                reason=site.reason,
            )

    @staticmethod
    def _announce_goroutines(traced: TracedProcess) -> None:
        """Log new leaks of goroutines."""
        for leak in traced.goroutines.new_leaks()[:_LEAKS_ANNOUNCED] if traced.goroutines is not None else ():
            comm = traced.attachment.process.comm
            log.warning(
                "goroutines.leak", pid=traced.pid, comm=comm, started_at=leak.started_at, reason=leak.reason
            )

    @staticmethod
    def _announce_resources(traced: TracedProcess) -> None:
        """Log descriptors or threads whose number keeps growing, once."""
        for leak in traced.resources.new_leaks():
            comm = traced.attachment.process.comm
            log.warning(f"{leak.kind}.leak", pid=traced.pid, comm=comm, count=leak.count, reason=leak.reason)

    @staticmethod
    def process_verdict(traced: TracedProcess, limits: Sequence[MemoryLimit]) -> ProcessVerdict:
        """The verdict on a process, from the last verdicts on its sites and heap, under these limits."""
        garbage_share = traced.go.garbage_share if traced.go is not None else 0.0
        known = traced.suppressions.rows
        verdict = traced.verdicts.of_process(traced.table, limits, known, traced.heap, garbage_share)
        verdict = with_uses(verdict, traced.heap.beside)
        verdict = traced.resources.added_to(verdict)
        return traced.goroutines.added_to(verdict) if traced.goroutines is not None else verdict

    @staticmethod
    def _classify_heap(view: ProcessView) -> None:
        """Compute the verdict on the managed heap, and find the growing sites that commit it."""
        traced = view.traced
        before = traced.heap.heap
        traced.runtimes.judge_heap(view.clock_ns(), traced.verdicts.leak_after_s)
        heap, table = traced.heap.heap, traced.table
        if heap is None:
            if traced.runtimes.has_unread_collector:
                VerdictEngine._judge_pages(traced)
            return
        used = table.used_rows
        attention, rates = traced.verdicts.ranks(used)
        keys = table.keys
        rising = [row for row in used[attention > 0].tolist() if traced.heap.may_commit(keys[row])]
        growing = [row for row in used[attention == _GROWS].tolist() if traced.heap.may_be_own(keys[row])]
        named = view.name(keys[row] for row in (*rising, *growing))
        own = [row for row in growing if use_of(keys[row], named[keys[row]].stack.frames) is JavaUse.OWN]
        traced.heap.own = np.array(own, np.intp)
        commits = [
            row for row in rising if traced.heap.is_committed_by(keys[row], named[keys[row]].stack.frames)
        ]
        traced.heap.rows = np.array(commits, np.intp)
        VerdictEngine._judge_owned(view, used[attention == _LEAKS].tolist())
        rate_of = dict(zip(used.tolist(), rates.tolist(), strict=True))
        traced.heap.beside = growth_by_use(
            (keys[row], named[keys[row]].stack.frames, rate_of[row]) for row in rising
        )
        is_new = heap.verdict is Verdict.LEAK and (before is None or before.verdict is not Verdict.LEAK)
        if is_new and traced.heap.leak_log.take(view.clock_ns()):
            log.warning(
                "heap.leak",
                pid=traced.pid,
                comm=traced.attachment.process.comm,
                runtime=heap.runtime,
                leak_bytes_per_s=heap.growth_bytes_per_s,
                reason=heap.reason,
            )

    @staticmethod
    def _judge_owned(view: ProcessView, leaking: Sequence[int]) -> None:
        """Find leaks of memory that objects of the managed heap may own: collections confirm them."""
        traced, now_ns = view.traced, view.clock_ns()
        heap, keys, began_ns = traced.heap, traced.table.keys, traced.table.began_ns
        if heap.heap is None:
            return
        runtime, leak_after_s = heap.heap.runtime, traced.verdicts.leak_after_s
        named = view.name(keys[row] for row in leaking)
        objects = traced.runtimes.object_looks(began_ns, now_ns)
        looks = heap.looks(began_ns, now_ns - owned_memory.FREED_AFTER_NS)
        owned: list[tuple[int, str | None]] = []
        for row in leaking:
            key, frames, growth = keys[row], named[keys[row]].stack.frames, traced.verdicts.growth_of(row)
            if objects is not None and object_memory.owned_by_objects(key, frames):
                owned.append((row, object_memory.why_unconfirmed(growth, objects, leak_after_s)))
            elif (owner := owned_memory.owner_of(runtime, key, frames)) is not None:
                why = owned_memory.why_unconfirmed(owner, growth, looks, leak_after_s, runtime)
                owned.append((row, why))
        heap.owned.judge(owned)

    @staticmethod
    def _judge_pages(traced: TracedProcess) -> None:
        """Find leaks of memory that may be pages of a heap whose collections are not seen."""
        used, verdicts = traced.table.used_rows, traced.verdicts
        attention, _rates = verdicts.ranks(used)
        leaking = used[attention == _LEAKS].tolist()
        traced.heap.owned.judge(
            (row, owned_memory.why_unconfirmed_pages(verdicts.growth_of(row), verdicts.leak_after_s))
            for row in leaking
        )

    @staticmethod
    def _settle_identities(view: ProcessView) -> None:
        """Find sites with the same names, and their blamed functions: a few more at each evaluation."""
        view.learn_charging()
        table, charging = view.traced.table, view.traced.charging
        live_bytes = table.columns()[:, COUNTERS.index("live_bytes")]
        largest = np.argsort(-live_bytes, kind="stable")
        used = table.used_rows
        freed = used[live_bytes[used] <= 0]
        allocated = table.columns()[freed, COUNTERS.index("allocated_count")]
        freed = freed[np.argsort(-allocated, kind="stable")]
        largest = largest[live_bytes[largest] > 0]
        attention, rates = view.traced.verdicts.ranks(largest)
        order = np.lexsort((live_bytes[largest], rates, attention))[::-1]
        charging.settle(view.name(charging.unsettled(table, largest[order], freed)))

    @staticmethod
    def look_for_suppressed(view: ProcessView, rows: Iterable[int] = ()) -> bool:
        """Determine which of these rows, of leaking or growing sites and of the largest are suppressed.

        Returns whether there are newly found ones.
        """
        table, suppressions = view.traced.table, view.traced.suppressions
        used = suppressions.unknown(table.used_rows)
        attention, rates = view.traced.verdicts.ranks(used)
        live_bytes = table.columns()[used, COUNTERS.index("live_bytes")]
        order = np.lexsort((live_bytes, rates, attention))[::-1]
        wanted = [*rows, *used[order[:_LOOKED_AT]].tolist()]
        keys = table.keys
        named = view.name(keys[row] for row in wanted)
        return suppressions.look_at((row, named[keys[row]]) for row in wanted)
