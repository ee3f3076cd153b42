"""What the memory of the traced processes is made of, and how that has grown since the attach."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog

from bpfleakd import errors
from bpfleakd.analysis.jit_modules import JitModules
from bpfleakd.analysis.memory_parts import Part, classify, shares, summarise
from bpfleakd.model.address_space import AddressSpaceReport, UseSummary
from bpfleakd.model.site import AllocationKind
from bpfleakd.process.pages import Pagemap, stack_pointers
from bpfleakd.process.process import ProcessInfo
from bpfleakd.process.smaps import Smaps, read_smaps, read_status
from bpfleakd.symbols.perf_map_tail import PerfMapTail
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.site_table import COUNTERS, SiteTable

__all__ = ["MemoryBreakdown"]

log = structlog.get_logger()

PROC = Path("/proc")


@dataclass(slots=True)
class _MeasuredProcess:
    """What is kept of a process: who it is, its memory at the attach, and the methods compiled since."""

    info: ProcessInfo
    first: tuple[UseSummary, ...]
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
        try:
            first = summarise(self._parts(pid, read_smaps(pid, self._proc), None))
        except errors.BpfleakdError as error:
            log.warning("memory.not-read", pid=pid, reason=error.message, hint=error.hint)
        self.restore(process, first)
        return first

    def restore(self, process: ProcessInfo, first: tuple[UseSummary, ...]) -> None:
        """Go on: growth is counted from `first`."""
        pid = process.id.pid
        perf_map = self._proc / str(pid) / "root" / "tmp" / f"perf-{process.namespace_pid}.map"
        self._processes[pid] = _MeasuredProcess(process, first, PerfMapTail(perf_map, process.uid))

    def forget(self, pid: int) -> None:
        """The process is not traced any more."""
        self._processes.pop(pid, None)

    def report(
        self, pid: int, space: AddressMap | None, table: SiteTable, *, attached_s: float, events_lost: int
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
            losses={
                "event_full": events_lost,
                "region_full": space.unrecorded_count if space is not None else 0,
                "mappings_left_out": smaps.left_out,
                "resident_bytes_estimated": sum(p.figures.resident_bytes for p in parts if p.estimated),
                "perf_map_refused": int(process.jit_tail.refused),
                "perf_map_skipped_bytes": process.jit_tail.skipped_bytes,
            },
        )

    def _parts(self, pid: int, smaps: Smaps, space: AddressMap | None) -> list[Part]:
        return classify(
            smaps.usages,
            space.ranges() if space is not None else (),
            stack_pointers(pid, self._proc),
            Pagemap(pid, self._proc).count,
        )


def _live_heap_bytes(table: SiteTable) -> int:
    rows = [row for row, key in enumerate(table.keys) if key.kind is AllocationKind.HEAP]
    return int(table.columns()[rows, COUNTERS.index("live_bytes")].sum())
