"""What the memory of the traced processes is made of, and how that has grown since the attach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from bpfleakd import errors
from bpfleakd.analysis.bill import AllocatorBooks, bill, growth_summary
from bpfleakd.analysis.free_memory import free_memory
from bpfleakd.analysis.jit_modules import JitModules
from bpfleakd.analysis.memory_parts import Part, classify, shares, summarise
from bpfleakd.model.address_space import AddressSpaceReport, BillLine, UseSummary
from bpfleakd.model.managed import ManagedHeap
from bpfleakd.model.site import AllocationKind
from bpfleakd.process.glibc_heap import FREE_CHUNKS_MAX, read_glibc_heap
from bpfleakd.process.pages import Pagemap, present_pages, stack_pointers
from bpfleakd.process.process import ProcessInfo
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.process.smaps import Smaps, read_smaps, read_status
from bpfleakd.symbols.perf_map_tail import PerfMapTail
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.site_table import COUNTERS, SiteTable

__all__ = ["MemoryBreakdown"]

log = structlog.get_logger()

PROC = Path("/proc")
# About 50 ms.
_CHUNKS_AT_ATTACH = 20_000


@dataclass(frozen=True, slots=True)
class FirstBill:
    """The bill that growth is counted from, and how long after the attach it was made."""

    attached_s: float
    lines: tuple[BillLine, ...]


@dataclass(slots=True)
class _MeasuredProcess:
    """What is kept of a process: who it is, its memory at the attach, and the methods compiled since."""

    info: ProcessInfo
    first: tuple[UseSummary, ...]
    first_bill: FirstBill | None
    jit_tail: PerfMapTail
    jit_modules: JitModules = field(default_factory=JitModules)


class MemoryBreakdown:
    """The traced processes from their attach on."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._processes: dict[int, _MeasuredProcess] = {}

    def follow(self, process: ProcessInfo) -> tuple[UseSummary, ...]:
        """Begin: growth is counted from what is returned. A process that cannot be read has no growth."""
        pid = process.id.pid
        first: tuple[UseSummary, ...] = ()
        first_bill = None
        try:
            smaps = read_smaps(pid, self._proc)
            parts = self._parts(pid, smaps, None)
            first = summarise(parts)
            first_bill = self._first_bill(pid, smaps, parts)
        except errors.BpfleakdError as error:
            log.warning("memory.not-read", pid=pid, reason=error.message, hint=error.hint)
        self.restore(process, first, first_bill)
        return first

    def restore(
        self, process: ProcessInfo, first: tuple[UseSummary, ...], first_bill: FirstBill | None = None
    ) -> None:
        """Go on: growth is counted from `first`."""
        pid = process.id.pid
        perf_map = self._proc / str(pid) / "root" / "tmp" / f"perf-{process.namespace_pid}.map"
        jit_tail = PerfMapTail(perf_map, process.uid)
        self._processes[pid] = _MeasuredProcess(process, first, first_bill, jit_tail)

    def forget(self, pid: int) -> None:
        """The process is not traced any more."""
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
    ) -> AddressSpaceReport:
        """The memory of a process that is followed, now.

        `space` tells whose the mappings since the attach are, `table` what is live in the heap. Raises
        NoSuchProcess, AccessDenied or KernelUnsupported.
        """
        process = self._processes[pid]
        status = read_status(pid, self._proc)
        smaps = read_smaps(pid, self._proc)
        parts = self._parts(pid, smaps, space)
        new_methods = process.jit_tail.read()
        if process.jit_tail.take_rewritten():
            process.jit_modules.clear()
        process.jit_modules.add(new_methods)
        uses = summarise(parts, process.first)
        books = self._books(pid, smaps)
        if process.first_bill is None:
            process.first_bill = FirstBill(attached_s, bill(parts, books, managed))
        first = process.first_bill
        lines = bill(parts, books, managed, first.lines, attached_s - first.attached_s)
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
            shares=shares(parts, _live_heap_bytes(table)),
            jit_modules=process.jit_modules.report(),
            managed=managed,
            bill=lines,
            growth_summary=growth_summary(lines),
            losses={
                "event_full": events_lost,
                "region_full": space.unrecorded_count if space is not None else 0,
                "mappings_left_out": smaps.left_out,
                "resident_bytes_estimated": sum(p.figures.resident_bytes for p in parts if p.estimated),
                "perf_map_refused": int(process.jit_tail.refused),
                "perf_map_skipped_bytes": process.jit_tail.skipped_bytes,
            },
        )

    def _first_bill(self, pid: int, smaps: Smaps, parts: Sequence[Part]) -> FirstBill | None:
        """The bill at the attach, if it does not take long; else the first that is asked for is."""
        books = self._books(pid, smaps, _CHUNKS_AT_ATTACH)
        return None if books is not None and books.left_out else FirstBill(0.0, bill(parts, books, None))

    def _books(self, pid: int, smaps: Smaps, chunks_max: int = FREE_CHUNKS_MAX) -> AllocatorBooks | None:
        """What glibc's lists say; None where there are none."""
        try:
            with RemoteMemory(pid, self._proc) as memory:
                mappings = [usage.mapping for usage in smaps.usages]
                heap = read_glibc_heap(memory, mappings, chunks_max=chunks_max)
        except OSError:
            return None
        if heap is None:
            return None
        found = []
        for start, end in heap.areas.tolist():
            inside = (heap.free[:, 0] >= start) & (heap.free[:, 0] < end)
            found.append(free_memory(start, present_pages(pid, start, end, self._proc), heap.free[inside]))
        return AllocatorBooks(
            arenas=heap.arenas,
            mapped_bytes=_resident_bytes(heap.mapped.tolist(), smaps),
            free_bytes=sum(each.resident_bytes for each in found),
            trimmable_bytes=sum(each.whole_pages_bytes for each in found),
            pinned_bytes=sum(each.pinned_bytes for each in found),
            left_out=heap.left_out,
        )

    def _parts(self, pid: int, smaps: Smaps, space: AddressMap | None) -> list[Part]:
        return classify(
            smaps.usages,
            space.ranges() if space is not None else (),
            stack_pointers(pid, self._proc),
            Pagemap(pid, self._proc).count,
        )


def _resident_bytes(ranges: Sequence[tuple[int, int]], smaps: Smaps) -> int:
    """What of these ranges is in memory: their share of the mappings that they lie in."""
    resident = 0.0
    for usage in smaps.usages:
        mapping = usage.mapping
        inside = sum(end - start for start, end in ranges if mapping.start <= start < mapping.end)
        if inside:
            whole = usage.resident_bytes + usage.swap_bytes
            resident += whole * min(1.0, inside / (mapping.end - mapping.start))
    return round(resident)


_HEAPS = (AllocationKind.HEAP, AllocationKind.GO_HEAP)


def _live_heap_bytes(table: SiteTable) -> int:
    rows = [row for row, key in enumerate(table.keys) if key.kind in _HEAPS]
    return int(table.columns()[rows, COUNTERS.index("live_bytes")].sum())
