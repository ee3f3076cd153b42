"""The outstanding blocks of a process: `bpfleakctl report`.

Blocks of the heap come from the kernel's live table, regions from the address map; both pass one selection,
so the list is bounded for every process. Files are omitted unless their site is requested: the kernel can
reclaim their memory at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.analysis.merging import merged
from bpfleakd.kernel.abi import KINDS
from bpfleakd.model.blocks import BlockReport, BlocksReport, SiteBlocks
from bpfleakd.model.process import ProcessSummary
from bpfleakd.model.report import SuppressedSites
from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.blocks import BlockSelection, SelectedSite, even_shares
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.address_space.regions import BLOCK_KINDS, regions_as_blocks
from bpfleakd.tracing.judging.site_suppressions import SiteSuppressions
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess

_NS_PER_S = 1_000_000_000



class Blocks(Struct, frozen=True):
    """The blocks of a process at `now_ns`."""

    view: ProcessView
    now_ns: int

    @property
    def traced(self) -> TracedProcess:
        """The process."""
        return self.view.traced

    def report(
        self,
        process: ProcessSummary,
        *,
        site: str | None,
        older_than_s: float,
        limit: int,
        largest_sites: int | None = None,
        suppress: bool = False,
    ) -> BlocksReport:
        """At most `limit` blocks, of all sites, of the `largest_sites` or of one. Raises NoSuchSite.

        `suppress` omits the known suppressed sites; a requested site is never omitted.
        """
        suppressions = self.traced.suppressions if suppress and site is None else None
        if site is not None:
            keys: set[SiteKey] | None = self._keys_of(site)
        else:
            keys = None if largest_sites is None else self._largest(largest_sites)
            if suppressions is not None and len(suppressions.rows):
                keys = self._unsuppressed(suppressions)
        sites = self._selection(keys, older_than_s, limit).sites()
        listed = [chosen for chosen in sites if len(chosen.listed)]
        others = [] if largest_sites is None or keys is None else self._live_besides(keys)
        summed: list[SelectedSite | SiteCounters] = [*sites, *others]
        recorded_count = sum(one.recorded_count for one in sites) + sum(one.live_count for one in others)
        of_sites = merged(self._site_blocks(listed), attrgetter("site"), _sum)
        return BlocksReport(
            process=process,
            older_than_s=older_than_s,
            live_bytes=sum(one.live_bytes for one in summed),
            live_count=sum(one.live_count for one in summed),
            sites=tuple(sorted(of_sites, key=lambda site: site.live_bytes, reverse=True)),
            left_out_sites=len(sites) - len(listed) + len(others),
            left_out_count=recorded_count - sum(len(chosen.listed) for chosen in listed),
            losses=self.traced.losses,
            suppressed=suppressions.sums(self.traced.table) if suppressions else {},
        )

    def _unsuppressed(self, suppressions: SiteSuppressions) -> set[SiteKey]:
        table = self.traced.table
        return set(_of_memory(table, suppressions.shown(table.used_rows)))

    def _keys_of(self, site: str) -> set[SiteKey]:
        table = self.traced.table
        used = self.view.name(table.keys_of(table.used_rows))
        keys = {key for key, named in used.items() if named.fingerprint == site}
        if not keys:
            raise _no_such_site(self.traced.pid, site)
        return keys

    def _largest(self, count: int) -> set[SiteKey]:
        table = self.traced.table
        keys = _of_memory(table, table.used_rows)
        keys.sort(key=lambda key: table.counters(key).live_bytes, reverse=True)
        return set(keys[:count])

    def _live_besides(self, keys: set[SiteKey]) -> list[SiteCounters]:
        table = self.traced.table
        others = (key for key in _of_memory(table, table.used_rows) if key not in keys)
        return [counters for counters in map(table.counters, others) if counters.live_count]

    def _selection(self, keys: set[SiteKey] | None, older_than_s: float, limit: int) -> BlockSelection:
        stack_ids = None if keys is None else np.array([key.stack_id for key in keys], np.uint64)
        born_until_ns = self.now_ns - round(older_than_s * _NS_PER_S) if older_than_s else None
        selection = BlockSelection(limit, born_until_ns=born_until_ns, stack_ids=stack_ids)
        if keys is None or any(key.kind in KINDS for key in keys):
            for addresses, blocks in self.view.maps.live_blocks(self.traced.pid):
                selection.add(addresses, blocks)
        space = self.view.space
        regions = space.live_regions() if space else []
        selection.add(*regions_as_blocks([region for region in regions if _is_wanted(region[0], keys)]))
        return selection

    def _site_blocks(self, sites: Sequence[SelectedSite]) -> Iterable[SiteBlocks]:
        keys = [SiteKey(BLOCK_KINDS[site.kind], site.stack_id) for site in sites]
        named = self.view.name(keys)
        self.view.learn_charging()
        for key, site in zip(keys, sites, strict=True):
            stack = named[key].stack
            yield SiteBlocks(
                site=named[key].fingerprint,
                kind=key.kind,
                caller=self.traced.charging.charged(key, stack.frames),
                live_bytes=site.live_bytes,
                live_count=site.live_count,
                blocks=tuple(map(self._block, site.listed.tolist())),
                left_out_count=site.recorded_count - len(site.listed),
                stack=stack.frames,
                truncated=stack.truncated,
                types=self.traced.block_types.of(key),
            )

    def _block(self, row: tuple[int, ...]) -> BlockReport:
        address, size, weight, born_ns, _stack_id, tid, _kind = row
        age_s = round(max(0, self.now_ns - born_ns) / _NS_PER_S, 3)
        comm = self.traced.thread_names.get(tid, "")
        return BlockReport(address, size, age_s, tid, comm, round(weight / max(size, 1), 3))


def _of_memory(table: SiteTable, rows: NDArray[np.intp]) -> list[SiteKey]:
    """The sites of these rows, except those of files."""
    return [key for key in table.keys_of(rows) if key.kind is not AllocationKind.FILE]


def without_suppressed(report: BlocksReport, suppressions: SiteSuppressions) -> BlocksReport:
    """A stored report, without the suppressed sites."""
    patterns = [(suppressions.match(site.stack), site) for site in report.sites]
    hidden = [(pattern, site) for pattern, site in patterns if pattern is not None]
    sums: dict[str, SuppressedSites] = {}
    for pattern, site in hidden:
        known = sums.get(pattern, SuppressedSites(0, 0, 0))
        sums[pattern] = SuppressedSites(
            known.sites + 1, known.live_bytes + site.live_bytes, known.live_count + site.live_count
        )
    return replace(
        report,
        live_bytes=report.live_bytes - sum(one.live_bytes for one in sums.values()),
        live_count=report.live_count - sum(one.live_count for one in sums.values()),
        left_out_count=report.left_out_count - sum(site.left_out_count for _pattern, site in hidden),
        sites=tuple(site for pattern, site in patterns if pattern is None),
        suppressed=sums,
    )


def narrowed(report: BlocksReport, *, site: str | None, older_than_s: float, limit: int) -> BlocksReport:
    """A part of a stored report. Raises NoSuchSite.

    Blocks that were left out of it are younger than the stored ones. So the sums are exact if `older_than_s`
    excludes a stored block; otherwise they are upper bounds.
    """
    kept = [one for one in report.sites if site in (None, one.site)]
    if site is not None and not kept:
        raise _no_such_site(report.process.pid, site)
    old = [aged for aged in (_older(one, older_than_s) for one in kept) if aged.live_count]
    shares = even_shares(
        np.array([len(one.blocks) for one in old], np.uint64),
        np.array([one.live_bytes for one in old], np.uint64),
        limit,
    )
    shortened = [
        replace(one, blocks=one.blocks[:share], left_out_count=len(one.blocks) + one.left_out_count - share)
        for one, share in zip(old, shares.tolist(), strict=True)
    ]
    listed = tuple(one for one in shortened if one.blocks)
    all_of_it = site is None and not older_than_s
    kept_count = sum(len(one.blocks) + one.left_out_count for one in old)
    if all_of_it:
        kept_count = report.left_out_count + sum(len(one.blocks) for one in report.sites)
    return BlocksReport(
        process=report.process,
        older_than_s=older_than_s,
        live_bytes=report.live_bytes if all_of_it else sum(one.live_bytes for one in old),
        live_count=report.live_count if all_of_it else sum(one.live_count for one in old),
        sites=listed,
        left_out_sites=len(old) - len(listed) + (report.left_out_sites if site is None else 0),
        left_out_count=kept_count - sum(len(one.blocks) for one in listed),
        losses=report.losses,
        suppressed=report.suppressed,
    )


def _older(site: SiteBlocks, older_than_s: float) -> SiteBlocks:
    blocks = tuple(block for block in site.blocks if block.age_s >= older_than_s)
    if len(blocks) == len(site.blocks):
        return site
    return replace(
        site,
        blocks=blocks,
        live_bytes=round(sum(block.size_bytes * block.weight for block in blocks)),
        live_count=round(sum(block.weight for block in blocks)),
        left_out_count=0,
    )


def _is_wanted(key: SiteKey, keys: set[SiteKey] | None) -> bool:
    return key.kind is not AllocationKind.FILE if keys is None else key in keys


def _sum(one: SiteBlocks, other: SiteBlocks) -> SiteBlocks:
    return replace(
        one,
        live_bytes=one.live_bytes + other.live_bytes,
        live_count=one.live_count + other.live_count,
        blocks=tuple(sorted((*one.blocks, *other.blocks), key=lambda block: -block.age_s)),
        left_out_count=one.left_out_count + other.left_out_count,
    )


def _no_such_site(pid: int, site: str) -> errors.NoSuchSite:
    return errors.NoSuchSite(
        f"process {pid} has no call site {site}",
        f"`bpfleakctl report --pid {pid}` lists the call sites with blocks",
    )
