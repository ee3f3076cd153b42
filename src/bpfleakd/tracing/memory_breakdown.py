"""The memory of the traced processes by use, and its growth since the attach."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePosixPath

import msgspec
import structlog
from msgspec import Struct

from bpfleakd import errors
from bpfleakd.analysis.bill import AllocatorBooks, GoHeap, UnreadHeap, bill, growth_summary, is_comparable
from bpfleakd.analysis.container_bill import container_bill
from bpfleakd.analysis.free_memory import free_memory
from bpfleakd.analysis.managed_code import module_of
from bpfleakd.analysis.memory_parts import Part, classify, shares, summarise, with_arenas
from bpfleakd.analysis.pinned_memory import PinnedPages, pinned_pages
from bpfleakd.model.address_space import AddressSpaceReport, BillLine, JitModule, UseSummary
from bpfleakd.model.container import ContainerBill
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.site import AllocationKind
from bpfleakd.process.files.memory_file_systems import memory_devices
from bpfleakd.process.files.rooted_open import root_of
from bpfleakd.process.heap_books.glibc_heap import FREE_CHUNKS_MAX, read_glibc_heap
from bpfleakd.process.heap_books.tcmalloc_heap import TcmallocHeap, read_tcmalloc_heap
from bpfleakd.process.memory_groups import CGROUP, GroupReader, read_group_memory, read_process_parts
from bpfleakd.process.pages import Pagemap, present_pages, stack_pointers
from bpfleakd.process.process import ProcessInfo
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.process.smaps import Smaps, read_smaps, read_status
from bpfleakd.symbols.jit_modules import JitModules
from bpfleakd.symbols.perf_map_tail import PerfMapTail
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.tracing.go.profile import GoProfile, is_gos_memory

log = structlog.get_logger()

PROC = Path("/proc")
# Allocators whose books can be read (process/heap_books); the loader's functions are probed as well.
_READ_ALLOCATORS = frozenset({"glibc", "tcmalloc", "ld.so"})
_UNREAD_LIBRARIES = ("jemalloc", "mimalloc")
# About 50 ms.
_CHUNKS_AT_ATTACH = 20_000


class FirstBill(Struct, frozen=True):
    """The bill that growth is counted from, and how long after the attach it was made.

    `is_read`: the object heap was read for it.
    """

    attached_s: float
    lines: tuple[BillLine, ...]
    is_read: bool = False


class FirstContainerBill(Struct, frozen=True):
    """The same for the control group that limits the process."""

    attached_s: float
    bill: ContainerBill


class _MeasuredProcess(Struct):
    """The record of a process: its identity, its memory at the attach, and the methods compiled since.

    The books of its `unread` allocators cannot be read.
    """

    info: ProcessInfo
    unread: tuple[str, ...]
    first: tuple[UseSummary, ...]
    first_bill: FirstBill | None
    jit_tail: PerfMapTail
    jit_modules: JitModules = msgspec.field(default_factory=JitModules)
    pinned: tuple[PinnedPages, ...] = ()
    first_container: FirstContainerBill | None = None


class _Books(Struct, frozen=True):
    """What allocators keep about their memory; `arenas` are the address ranges (start, end) of glibc's."""

    figures: AllocatorBooks | None = None
    arenas: tuple[tuple[int, int], ...] = ()


class MemoryBreakdown:
    """The traced processes from their attach on."""

    def __init__(self, proc: Path = PROC, cgroup: Path = CGROUP) -> None:
        self._proc = proc
        self._cgroup = cgroup
        self._processes: dict[int, _MeasuredProcess] = {}

    def follow(self, process: ProcessInfo, allocators: Collection[str] = ()) -> tuple[UseSummary, ...]:
        """Start counting growth from the returned summary. A process that cannot be read has no growth.

        `allocators` are those of the process, by name.
        """
        pid = process.id.pid
        first: tuple[UseSummary, ...] = ()
        first_bill = None
        try:
            smaps = read_smaps(pid, self._proc)
            books = self._books(pid, smaps, _CHUNKS_AT_ATTACH)
            parts = self._parts(pid, smaps, None, books)
            first = summarise(parts)
            # If reading took long, the first request makes the bill.
            if books.figures is None or not books.figures.left_out:
                lines = bill(parts, books.figures, None, unread=_unread_heap(_unread(allocators)))
                first_bill = FirstBill(0.0, lines)
        except errors.BpfleakdError as error:
            log.warning("memory.not-read", pid=pid, reason=error.message, hint=error.hint)
        self.restore(process, first, allocators, first_bill)
        self._container_bill(pid, 0.0)
        return first

    def restore(
        self,
        process: ProcessInfo,
        first: tuple[UseSummary, ...],
        allocators: Collection[str] = (),
        first_bill: FirstBill | None = None,
    ) -> None:
        """Continue: growth is counted from `first`."""
        pid = process.id.pid
        perf_map = PurePosixPath(f"/tmp/perf-{process.namespace_pid}.map")
        jit_tail = PerfMapTail(perf_map, process.uid, root_of(pid, self._proc))
        self._processes[pid] = _MeasuredProcess(process, _unread(allocators), first, first_bill, jit_tail)

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced."""
        self._processes.pop(pid, None)

    def report(
        self,
        pid: int,
        space: AddressMap | None,
        table: SiteTable,
        managed: ManagedHeap | None = None,
        *,
        attached_s: float,
        events_lost: int,
        compiled: Callable[[], Sequence[JitModule]] = tuple,
        go: GoProfile | None = None,
    ) -> AddressSpaceReport:
        """The current memory of a followed process.

        `space` has the owners of the mappings since the attach, `table` the live heap. `compiled` returns
        what runtimes have compiled, for memory that no perf map covers. Raises NoSuchProcess, AccessDenied or
        KernelUnsupported.
        """
        process = self._processes[pid]
        status = read_status(pid, self._proc)
        smaps = read_smaps(pid, self._proc)
        books = self._books(pid, smaps)
        parts = self._parts(pid, smaps, space, books)
        new_methods = process.jit_tail.read()
        if process.jit_tail.take_rewritten():
            process.jit_modules.clear()
        process.jit_modules.add((module_of(name), size_bytes) for name, size_bytes in new_methods)
        uses = summarise(parts, process.first)
        live_bytes = _live_heap_bytes(table)
        unread = _unread_heap(process.unread, live_bytes)
        lines = self._bill(process, parts, books.figures, managed, unread, attached_s, _go_heap(smaps, go))
        return AddressSpaceReport(
            pid=pid,
            comm=process.info.comm,
            attached_s=round(attached_s, 3),
            virtual_bytes=sum(use.virtual_bytes for use in uses),
            resident_bytes=sum(use.resident_bytes for use in uses),
            swap_bytes=sum(use.swap_bytes for use in uses),
            peak_resident_bytes=status.peak_resident_bytes,
            page_table_bytes=status.page_table_bytes,
            uses=uses,
            shares=shares(parts, live_bytes),
            jit_modules=process.jit_modules.report() or tuple(compiled()),
            managed=managed,
            bill=lines,
            growth_summary=growth_summary(lines),
            container=self._container_bill(pid, attached_s),
            losses={
                "event_full": events_lost,
                "region_full": space.unrecorded_count if space is not None else 0,
                "mappings_left_out": smaps.left_out,
                "resident_bytes_estimated": sum(p.figures.resident_bytes for p in parts if p.estimated),
                "perf_map_refused": int(process.jit_tail.refused),
                "perf_map_skipped_bytes": process.jit_tail.skipped_bytes,
            },
        )

    def quick_bill(
        self,
        pid: int,
        space: AddressMap | None = None,
        managed: ManagedHeap | None = None,
        attached_s: float = 0.0,
        go: GoProfile | None = None,
    ) -> tuple[tuple[BillLine, ...], ContainerBill | None]:
        """The bill of any process, and of the control group that limits it, if it does not take long.

        A process that is not followed has no growth. Raises the errors of `report`.
        """
        smaps = read_smaps(pid, self._proc)
        books = self._books(pid, smaps, _CHUNKS_AT_ATTACH)
        parts = self._parts(pid, smaps, space, books)
        container = self._container_bill(pid, attached_s)
        process = self._processes.get(pid)
        unread = _unread_heap(process.unread if process is not None else _mapped_unread(smaps))
        of_go = _go_heap(smaps, go)
        if process is None or process.first_bill is None:
            return bill(parts, books.figures, managed, unread=unread, go=of_go), container
        return self._bill(process, parts, books.figures, managed, unread, attached_s, of_go), container

    def _bill(
        self,
        process: _MeasuredProcess,
        parts: Sequence[Part],
        books: AllocatorBooks | None,
        managed: ManagedHeap | None,
        unread: UnreadHeap | None,
        attached_s: float,
        go: GoHeap | None,
    ) -> tuple[BillLine, ...]:
        """The current bill, with the growth since the first one that it can be compared with."""
        first = process.first_bill
        lines = bill(parts, books, managed, unread=unread, go=go)
        is_read = managed is not None and managed.is_read
        if first is None or is_read > first.is_read or not is_comparable(first.lines, lines):
            process.first_bill = FirstBill(attached_s, lines, is_read)
            return lines
        return bill(parts, books, managed, first.lines, attached_s - first.attached_s, unread, go)

    def _container_bill(self, pid: int, attached_s: float) -> ContainerBill | None:
        """The charges of the group that limits the process; None without a limit."""
        group = GroupReader(self._proc, self._cgroup).narrowest(pid)
        if group is None:
            return None
        memory, parts = read_group_memory(group), read_process_parts(pid, self._proc)
        process = self._processes.get(pid)
        if process is None:
            return container_bill(memory, parts)
        first = process.first_container
        if first is None or first.bill.cgroup != memory.cgroup:
            found = container_bill(memory, parts)
            process.first_container = FirstContainerBill(attached_s, found)
            return found
        return container_bill(memory, parts, first.bill, attached_s - first.attached_s)

    def _books(self, pid: int, smaps: Smaps, chunks_max: int = FREE_CHUNKS_MAX) -> _Books:
        """Figures from the lists of glibc and the statistics of tcmalloc, if they can be read."""
        try:
            with RemoteMemory(pid, self._proc) as memory:
                mappings = [usage.mapping for usage in smaps.usages]
                heap = read_glibc_heap(memory, mappings, chunks_max=chunks_max)
                tcmalloc = read_tcmalloc_heap(memory, mappings)
        except OSError:
            return _Books()
        if heap is None:
            return _Books() if tcmalloc is None else _Books(_books_of(tcmalloc))
        found = []
        pinned = []
        for start, end in heap.areas.tolist():
            inside = heap.free[(heap.free[:, 0] >= start) & (heap.free[:, 0] < end)]
            present = present_pages(pid, start, end, self._proc)
            found.append(free_memory(start, present, inside))
            pinned.append(pinned_pages(start, present, inside))
        if pid in self._processes:
            self._processes[pid].pinned = tuple(pinned)
        figures = AllocatorBooks(
            arenas=heap.arenas,
            mapped_bytes=_resident_bytes(heap.mapped.tolist(), smaps),
            free_bytes=sum(each.resident_bytes for each in found),
            trimmable_bytes=sum(each.whole_pages_bytes for each in found),
            pinned_bytes=sum(each.pinned_bytes for each in found),
            left_out=heap.left_out,
            tcmalloc_bytes=tcmalloc.committed_bytes if tcmalloc else 0,
            tcmalloc_free_bytes=tcmalloc.free_bytes if tcmalloc else 0,
        )
        return _Books(figures, tuple(map(tuple, heap.areas.tolist())))

    def pinned(self, pid: int) -> tuple[PinnedPages, ...]:
        """Pages of glibc's in which live blocks pin freed memory, as of the last report; returned once."""
        process = self._processes[pid]
        pages, process.pinned = process.pinned, ()
        return pages

    def _parts(self, pid: int, smaps: Smaps, space: AddressMap | None, books: _Books) -> list[Part]:
        return classify(
            smaps.usages,
            with_arenas(space.ranges() if space is not None else (), books.arenas),
            stack_pointers(pid, self._proc),
            Pagemap(pid, self._proc).count,
            memory_devices(pid, smaps.usages, self._proc),
        )


def _unread(allocators: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(set(allocators) - _READ_ALLOCATORS))


def _mapped_unread(smaps: Smaps) -> tuple[str, ...]:
    """Unread allocators of a process whose files nobody has opened, by their libraries' names."""
    names = {usage.mapping.path.rpartition("/")[2] for usage in smaps.usages}
    return tuple(each for each in _UNREAD_LIBRARIES if any(name.startswith(f"lib{each}") for name in names))


def _unread_heap(allocators: tuple[str, ...], recorded_bytes: int = 0) -> UnreadHeap | None:
    return UnreadHeap(allocators, recorded_bytes) if allocators else None


def _go_heap(smaps: Smaps, go: GoProfile | None) -> GoHeap | None:
    if go is None:
        return None
    gos = (usage for usage in smaps.usages if is_gos_memory(usage.mapping))
    resident_bytes = sum(usage.resident_bytes + usage.swap_bytes for usage in gos)
    return GoHeap(resident_bytes, go.live_bytes, go.is_alone)


def _books_of(heap: TcmallocHeap) -> AllocatorBooks:
    """The books of a program without glibc's allocator."""
    return AllocatorBooks(0, 0, 0, 0, 0, 0, heap.committed_bytes, heap.free_bytes)


def _resident_bytes(ranges: Sequence[tuple[int, int]], smaps: Smaps) -> int:
    """The resident part of these ranges: their share of the mappings that contain them."""
    resident = 0.0
    starts = [start for start, _end in ranges]
    for usage in smaps.usages:
        first, last = usage.mapping.start, usage.mapping.end
        # The usages are in order, and do not overlap.
        some = ranges[max(0, bisect_right(starts, first) - 1) : bisect_left(starts, last)]
        inside = sum(max(0, min(end, last) - max(start, first)) for start, end in some)
        resident += (usage.resident_bytes + usage.swap_bytes) * inside / (last - first)
    return round(resident)


_HEAPS = (AllocationKind.HEAP, AllocationKind.GO_HEAP)


def _live_heap_bytes(table: SiteTable) -> int:
    rows = [row for row, key in enumerate(table.keys) if key.kind in _HEAPS]
    return int(table.columns()[rows, COUNTERS.index("live_bytes")].sum())
