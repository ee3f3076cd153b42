"""The address map as simply as it can be written: a dictionary of pages. Slow, and easy to believe."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from bpfleakd.model.site import AllocationKind, SiteCounters, SiteKey
from bpfleakd.table.census import SiteCensus
from bpfleakd.table.regions import Owner, Special

PAGE = 4096


@dataclass(frozen=True)
class _Page:
    """The owner of a page, and its region (None: a special owner's)."""

    owner: Owner
    region: int | None
    born_ns: int
    tid: int


class ReferenceMap:
    """Operations as of AddressMap, in whole pages: `first` and `count` are page numbers."""

    def __init__(self) -> None:
        self.pages: dict[int, _Page] = {}
        self.moving: dict[int, tuple[int, int, dict[int, _Page]]] = {}
        self._last: dict[int, Owner | None] = {}
        self._reused: dict[int, set[int]] = {}
        self._regions = 0
        self._allocated: dict[SiteKey, list[int]] = defaultdict(lambda: [0, 0])
        self._peaks: dict[SiteKey, int] = defaultdict(int)

    def _new(self, owner: Owner, count: int, time_ns: int, tid: int) -> _Page:
        if isinstance(owner, Special):
            return _Page(owner, None, 0, 0)
        self._regions += 1
        self._allocated[owner][0] += count * PAGE
        self._allocated[owner][1] += 1
        return _Page(owner, self._regions, time_ns, tid)

    def _touch(self, first: int, count: int) -> None:
        for reused in self._reused.values():
            reused.update(range(first, first + count))

    def mapped(self, first: int, count: int, owner: Owner, time_ns: int, tid: int) -> None:
        if count:
            self._touch(first, count)
            page = self._new(owner, count, time_ns, tid)
            self.pages |= dict.fromkeys(range(first, first + count), page)

    def unmapped(self, first: int, count: int) -> None:
        self._touch(first, count)
        for n in range(first, first + count):
            self.pages.pop(n, None)

    def take(self, tid: int, first: int, count: int) -> None:
        self.put_back(tid)
        self._touch(first, count)
        last = self.pages.get(first + max(0, count - 1))
        self._last[tid] = last.owner if last else None
        held = {n: self.pages.pop(n) for n in range(first, first + count) if n in self.pages}
        self.moving[tid] = (first, count, held)
        self._reused[tid] = set()

    def put_back(self, tid: int) -> None:
        if tid in self.moving:
            _first, _count, held = self.moving.pop(tid)
            reused = self._reused.pop(tid)
            back = {n: page for n, page in held.items() if n not in reused}
            self.pages |= back
            for n in back:
                self._touch(n, 1)

    def release(self, tid: int) -> None:
        self.moving.pop(tid, None)
        self._reused.pop(tid, None)

    def put(self, tid: int, first: int, count: int, owner: Owner, time_ns: int, keep_old: bool) -> None:
        if tid not in self.moving:
            self.mapped(first, count, Special.BASELINE, time_ns, tid)
            return
        last = self._last[tid]
        if last in (Special.ALLOCATOR, Special.RESERVED):
            owner = last
        elif isinstance(last, SiteKey) and last.kind in ("file", "thread-stack"):
            owner = SiteKey(last.kind, owner.stack_id) if isinstance(owner, SiteKey) else owner
        if keep_old:
            self.put_back(tid)
            self.mapped(first, count, owner, time_ns, tid)
            return
        old_first, old_count, held = self.moving[tid]
        self.release(tid)
        # Where the old range has gaps, the new place keeps its pages.
        moved = {n - old_first + first: page for n, page in held.items() if n - old_first < count}
        for n in (*moved, *range(first + old_count, first + count)):
            self.unmapped(n, 1)
        self.pages |= moved
        if count > old_count:
            page = self._new(owner, count - old_count, time_ns, tid)
            self.pages |= dict.fromkeys(range(first + old_count, first + count), page)

    def protected(
        self, first: int, count: int, accessible: bool, owner: Owner, time_ns: int, tid: int
    ) -> None:
        unused = (Special.RESERVED, Special.DISCARDED)
        present = [n for n in range(first, first + count) if n in self.pages]
        if accessible:
            changing = [n for n in present if self.pages[n].owner in unused]
            page = self._new(owner, len(changing), time_ns, tid) if changing else None
        else:
            changing = [n for n in present if self.pages[n].owner is not Special.ALLOCATOR]
            page = self._new(Special.RESERVED, 0, 0, 0)
        self.pages |= dict.fromkeys(changing, page)

    def discarded(self, first: int, count: int) -> None:
        for n in range(first, first + count):
            owner = self.pages[n].owner if n in self.pages else None
            if isinstance(owner, SiteKey) and owner.kind is AllocationKind.COMMIT:
                self.pages[n] = self._new(Special.DISCARDED, 0, 0, 0)

    # The contents

    def _live(self) -> list[tuple[int, _Page]]:
        held = [item for _first, _count, pages in self.moving.values() for item in pages.items()]
        return [*self.pages.items(), *held]

    def counters(self) -> dict[SiteKey, SiteCounters]:
        """To be asked after every operation: a peak is the most that was found."""
        live = self._live()
        result = {}
        for site, (allocated_bytes, allocated_count) in self._allocated.items():
            regions = [page.region for _n, page in live if page.owner == site]
            live_bytes = len(regions) * PAGE
            self._peaks[site] = max(self._peaks[site], live_bytes)
            result[site] = SiteCounters(
                live_bytes,
                len(set(regions)),
                allocated_bytes,
                allocated_count,
                temporary_count=0,
                peak_live_bytes=self._peaks[site],
            )
        return result

    def special_bytes(self) -> dict[Special, int]:
        live = self._live()
        return {special: PAGE * sum(page.owner is special for _n, page in live) for special in Special}

    def census(self) -> dict[SiteKey, SiteCensus]:
        result: dict[SiteKey, SiteCensus] = {}
        live = [page for _n, page in self._live() if isinstance(page.owner, SiteKey)]
        for page in live:
            site = result.setdefault(page.owner, SiteCensus(page.born_ns))
            site.oldest_born_ns = min(site.oldest_born_ns, page.born_ns)
            by_tid = site.live_bytes_by_tid
            by_tid[page.tid] = by_tid.get(page.tid, 0) + PAGE
        for owner, tid, _region in {(page.owner, page.tid, page.region) for page in live}:
            by_tid = result[owner].live_count_by_tid
            by_tid[tid] = by_tid.get(tid, 0) + 1
        return result
