"""Scans for lost blocks: run in a child process, and reported with names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from bpfleakd.analysis.merging import merged
from bpfleakd.analysis.suppressions import Suppressions
from bpfleakd.kernel import abi
from bpfleakd.kernel.children.child import Child
from bpfleakd.model.code.stack import NamedStack
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.scan import (
    ReachabilitySums,
    ScanCaveat,
    ScanMethod,
    ScannedBlock,
    ScannedSite,
    ScanReport,
)
from bpfleakd.model.site import SiteKey
from bpfleakd.queries.scan_reply import ScanReply, ScanRequest, SiteSums
from bpfleakd.reachability.classification import KINDS, is_reachable
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess

_WORKER = "bpfleakd.queries.scan_worker"
_TIMEOUT_S = 600.0
_NS_PER_S = 1_000_000_000
# Naming a call site takes a few milliseconds, and nobody reads a list of thousands.
_SITES_MAX = 1_000

# Losses that make blocks unknown; unknown memory holds other blocks as if it were a root.
_BLOCKS_MISSED = ("live_full", "thread_full", "return_missed", "result_unreadable")
# Losses that make it unknown where the heap is, and which blocks it consists of.
_HEAP_UNKNOWN = (*_BLOCKS_MISSED, "free_missed", "event_full", "unattended")
# For other allocators it is unknown how much they add to the requested size, or allocate for themselves.
_ALLOCATORS_UNDERSTOOD = {"glibc"}


class ScanOptions(Struct, frozen=True):
    """The options of `bpfleakctl scan`. At most `limit` lost blocks are listed, including suppressed ones."""

    older_than_s: float
    stop: bool
    stop_limit_s: float
    limit: int
    suppressions: Suppressions


class PendingScan:
    """A scan that is prepared in the tracing thread, and run in another one."""

    def __init__(self, view: ProcessView, options: ScanOptions, heap: Sequence[tuple[int, int]] = ()) -> None:
        """`heap` are the ranges in which only the allocators have put blocks since the attach."""
        traced = self.traced = view.traced
        self.options = options
        process = traced.attachment.process.id
        # A separate descriptor: the process may end meanwhile, and its table be dropped.
        self._live_fd = os.dup(view.maps.live_descriptor(process.pid))
        self._threads_fd = os.dup(view.maps.threads_descriptor)
        self._request = ScanRequest(
            pid=process.pid,
            start_ticks=process.start_ticks,
            live_fd=self._live_fd,
            older_than_s=options.older_than_s,
            stop=options.stop,
            stop_limit_s=options.stop_limit_s,
            allocator_paths=sorted({each.module for each in traced.attachment.allocator_functions}),
            limit=options.limit,
            heap=heap if _knows_all_blocks(traced) else (),
            threads_fd=self._threads_fd,
        )
        self._child: Child | None = None
        self._lock = threading.Lock()
        self._cancelled = False

    def run(self) -> ScanReply:
        """Scan, which may take long. Raises NoSuchProcess, TargetRefused, AccessDenied or KernelError."""
        try:
            with self._lock:
                child = self._child = Child(_WORKER, [self._live_fd, self._threads_fd])
                if self._cancelled:
                    child.kill()
            reply = child.ask(msgspec.to_builtins(self._request), _TIMEOUT_S)
        finally:
            os.close(self._live_fd)
            os.close(self._threads_fd)
        sites = [SiteSums(**site) for site in reply.pop("sites")]
        return ScanReply(**reply, sites=sites)

    def cancel(self) -> None:
        """Make `run` end with KernelError, from another thread."""
        with self._lock:
            self._cancelled = True
            if self._child is not None:
                self._child.kill()


def scan_report(
    view: ProcessView, options: ScanOptions, reply: ScanReply, process: ProcessSummary
) -> ScanReport:
    """The result with names: sites that lose blocks, the worst first."""
    sums = {_key(site): _sums(site) for site in reply.sites}
    losing = sorted(
        (site for site in reply.sites if any(site.counts[1:])), key=lambda site: _badness(sums[_key(site)])
    )[:_SITES_MAX]
    traced = view.traced
    named = view.name([_key(site) for site in losing])
    scanned = (_site(site, named[_key(site)], reply.now_ns, traced) for site in losing)
    sites = sorted(merged(scanned, attrgetter("site"), _sum), key=lambda site: _badness(site.sums))
    patterns = {site.site: options.suppressions.match(site.stack) for site in sites}
    return ScanReport(
        process=process,
        older_than_s=options.older_than_s,
        method=ScanMethod(reply.method),
        stopped_s=round(reply.stopped_s, 6),
        took_s=round(reply.took_s, 3),
        read_bytes=reply.read_bytes,
        caveats=(*_caveats(traced, process), *map(ScanCaveat, reply.caveats)),
        young_bytes=reply.young_bytes,
        young_count=reply.young_count,
        sums=_total(sums.values()),
        sites=tuple(site for site in sites if patterns[site.site] is None),
        suppressed=_by_pattern((patterns[site.site], site.sums) for site in sites),
        losses=traced.counters.losses,
        known_heap_bytes=reply.heap_bytes,
    )


def reachable_sites(reply: ScanReply) -> dict[SiteKey, bool | None]:
    """Whether the blocks of each site are reachable, for sites with blocks of the requested age."""
    return {_key(site): is_reachable(_sums(site)) for site in reply.sites}


def _knows_all_blocks(traced: TracedProcess) -> bool:
    """Whether every block since the attach is in the table, so memory outside of blocks is free."""
    losses, probes = traced.losses, traced.attachment.allocator_functions
    return (
        not traced.counters.was_sampled
        and not any(losses[reason] for reason in _HEAP_UNKNOWN)
        and {probe.allocator for probe in probes} == _ALLOCATORS_UNDERSTOOD
    )


def _key(site: SiteSums) -> SiteKey:
    return SiteKey(abi.KINDS[site.kind], site.stack_id)


def _sums(site: SiteSums) -> ReachabilitySums:
    values = {}
    for kind, size_bytes, count in zip(KINDS, site.size_bytes, site.counts, strict=True):
        values[f"{kind.name.lower()}_bytes"] = size_bytes
        values[f"{kind.name.lower()}_count"] = count
    return ReachabilitySums(**values)


def _total(sums: Iterable[ReachabilitySums]) -> ReachabilitySums:
    names = [field.name for field in fields(ReachabilitySums)]
    rows = [[getattr(one, name) for name in names] for one in sums]
    return ReachabilitySums(*map(sum, zip(*rows, strict=True)))


def _by_pattern(sites: Iterable[tuple[str | None, ReachabilitySums]]) -> dict[str, ReachabilitySums]:
    sums: dict[str, ReachabilitySums] = {}
    for pattern, of_site in sites:
        if pattern is not None:
            sums[pattern] = _total((sums.get(pattern, ReachabilitySums()), of_site))
    return sums


def _badness(sums: ReachabilitySums) -> tuple[int, int]:
    """The sort key of sites, ascending."""
    return -(sums.directly_lost_bytes + sums.indirectly_lost_bytes), -sums.possibly_lost_bytes


def _site(site: SiteSums, named: NamedStack, now_ns: int, traced: TracedProcess) -> ScannedSite:
    blamed = traced.charging.charged(_key(site), named.stack.frames)
    sums = _sums(site)
    blocks = tuple(
        ScannedBlock(
            address=address,
            size_bytes=size_bytes,
            age_s=round(max(0, now_ns - born_ns) / _NS_PER_S, 3),
            tid=tid,
            comm=traced.thread_names.get(tid, ""),
            reachability=KINDS[kind],
        )
        for address, size_bytes, born_ns, tid, kind in site.blocks
    )
    return ScannedSite(
        site=named.fingerprint,
        function=blamed.function if blamed else None,
        module=blamed.module if blamed else None,
        location=blamed.location if blamed else None,
        reachable=is_reachable(sums),
        sums=sums,
        blocks=blocks,
        left_out_count=sum(site.counts[1:]) - len(blocks),
        stack=named.stack.frames,
        truncated=named.stack.truncated,
    )


def _sum(one: ScannedSite, other: ScannedSite) -> ScannedSite:
    sums = _total((one.sums, other.sums))
    return replace(
        one,
        reachable=is_reachable(sums),
        sums=sums,
        blocks=tuple(sorted((*one.blocks, *other.blocks), key=lambda block: -block.age_s)),
        left_out_count=one.left_out_count + other.left_out_count,
    )


def _caveats(traced: TracedProcess, process: ProcessSummary) -> list[ScanCaveat]:
    caveats = []
    if process.mode != "exact":
        caveats.append(ScanCaveat.SAMPLED)
    if any(traced.counters.losses[reason] for reason in _BLOCKS_MISSED):
        caveats.append(ScanCaveat.BLOCKS_MISSED)
    return caveats
