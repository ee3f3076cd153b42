"""Verdicts on traced processes, and which of their call sites are suppressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import numpy as np
import structlog
from numpy.typing import NDArray

from bpfleakd.kernel.maps import Maps
from bpfleakd.model.site import SiteKey
from bpfleakd.model.stack import NamedStack
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.process.memory_limits import read_memory_limits
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.address_maps import AddressMaps
from bpfleakd.tracing.managed_heap import commits_managed_heap, may_commit_heap
from bpfleakd.tracing.regions import regions_as_blocks
from bpfleakd.tracing.report import Reporter
from bpfleakd.tracing.traced_process import TracedProcess

__all__ = ["VerdictEngine"]

log = structlog.get_logger()

# A program that leaks everywhere need not fill the log.
_LEAKS_ANNOUNCED = 20
_ANNOUNCE_PAUSE_NS = 600_000_000_000
# Sites that are named at a time to find those that are suppressed: a millisecond or so each.
_LOOKED_AT = 32


class VerdictEngine:
    """Judges processes by their tables, and names what is to be said of them."""

    def __init__(
        self, maps: Maps, spaces: AddressMaps, reporter: Reporter, clock_ns: Callable[[], int]
    ) -> None:
        self._maps = maps
        self._spaces = spaces
        self._reporter = reporter
        self._clock_ns = clock_ns

    def evaluate(self, traced: TracedProcess) -> None:
        """Compute the verdicts on the sites of a process; leaks that are new go to the log."""
        self._settle_identities(traced)
        table, charging = traced.table, traced.charging
        found = traced.verdicts.compute(
            table, self.all_blocks(traced), self._clock_ns, charging.units(table), charging.functions(table)
        )
        leaks = traced.leaks_to_announce(found, self._clock_ns(), _ANNOUNCE_PAUSE_NS)[:_LEAKS_ANNOUNCED]
        self.look_for_suppressed(traced, leaks)
        self._judge_heap(traced)
        traced.process_verdict = self.process_verdict(traced)
        leaks = np.setdiff1d(traced.suppressions.shown(np.array(leaks, np.intp)), traced.heap.rows).tolist()
        if not leaks:
            return
        report = self._reporter.sites(traced, self.namer(traced), leaks, self._clock_ns())
        for site in report:
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

    def process_verdict(self, traced: TracedProcess) -> ProcessVerdict:
        """The verdict on a process, of the last verdicts on its sites and heap, under its limits now."""
        limits = read_memory_limits(traced.pid)
        return traced.verdicts.of_process(traced.table, limits, traced.suppressions.rows, traced.heap)

    def _judge_heap(self, traced: TracedProcess) -> None:
        """Judge the managed heap, and find the sites that commit it among those that grow."""
        before = traced.heap.heap
        traced.runtimes.judge_heap(self._clock_ns(), traced.verdicts.leak_after_s)
        heap, table = traced.heap.heap, traced.table
        if heap is None:
            return
        used = table.used_rows
        attention, _rates = traced.verdicts.ranks(used)
        keys = table.keys
        rising = [row for row in used[attention > 0].tolist() if may_commit_heap(keys[row])]
        named = self.name(traced, [keys[row] for row in rising])
        commits = [row for row in rising if commits_managed_heap(keys[row], named[keys[row]].stack.frames)]
        traced.heap.rows = np.array(commits, np.intp)
        if heap.verdict is Verdict.LEAK and (before is None or before.verdict is not Verdict.LEAK):
            log.warning(
                "heap.leak",
                pid=traced.pid,
                comm=traced.attachment.process.comm,
                runtime=heap.runtime,
                leak_bytes_per_s=heap.growth_bytes_per_s,
                reason=heap.reason,
            )

    def _settle_identities(self, traced: TracedProcess) -> None:
        """Find out which sites are the same, and who is to be charged: some more at each evaluation."""
        table, charging = traced.table, traced.charging
        charging.learn(table, lambda key: self._maps.stack(traced.pid, key.stack_id))
        live_bytes = table.columns()[:, COUNTERS.index("live_bytes")]
        largest = np.argsort(-live_bytes, kind="stable")
        largest = largest[live_bytes[largest] > 0]
        attention, rates = traced.verdicts.ranks(largest)
        order = np.lexsort((live_bytes[largest], rates, attention))[::-1]
        charging.settle(self.name(traced, charging.unsettled(table, largest[order])))

    def look_for_suppressed(self, traced: TracedProcess, rows: Iterable[int] = ()) -> bool:
        """Find out which are suppressed: of these rows, of what leaks or grows, and of the largest sites.

        Returns whether there are some that were not known to be.
        """
        table, suppressions = traced.table, traced.suppressions
        used = suppressions.unknown(table.used_rows)
        attention, rates = traced.verdicts.ranks(used)
        live_bytes = table.columns()[used, COUNTERS.index("live_bytes")]
        order = np.lexsort((live_bytes, rates, attention))[::-1]
        wanted = [*rows, *used[order[:_LOOKED_AT]].tolist()]
        keys = table.keys
        named = self.name(traced, [keys[row] for row in wanted])
        return suppressions.look_at((row, keys[row].kind, named[keys[row]]) for row in wanted)

    def all_blocks(self, traced: TracedProcess) -> Iterator[NDArray[np.void]]:
        """All blocks and mappings of a process: batches of LIVE_BLOCK records, kinds by BLOCK_KINDS."""
        space = self._spaces.map_of(traced.pid)
        return chain(
            (values for _addresses, values in self._maps.live_blocks(traced.pid)),
            [regions_as_blocks(space.live_regions())[1]] if space else [],
        )

    def name(self, traced: TracedProcess, keys: Iterable[SiteKey]) -> dict[SiteKey, NamedStack]:
        """The stacks of sites, with names as good as they can be had now."""
        return traced.named_stacks(self._maps, keys, self._clock_ns())

    def namer(self, traced: TracedProcess) -> Callable[[Iterable[SiteKey]], dict[SiteKey, NamedStack]]:
        """What names the stacks of one process."""
        return lambda keys: self.name(traced, keys)
