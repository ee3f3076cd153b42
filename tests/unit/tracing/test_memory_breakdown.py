"""Memory reports of a real process, without tracing it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.model.address_space import AddressSpaceReport, BillKind
from bpfleakd.model.runtimes.managed import ManagedHeap
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import Verdict
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import ProcessInfo, read_process
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.memory_breakdown import MemoryBreakdown

from .doubles import counter_rows

PAGE = 4096

# Maps 1009 pages, touches 101 of them, says where; ends at the end of its input.
_PROGRAM = """
import ctypes, mmap, sys
print(flush=True)
sys.stdin.readline()
memory = mmap.mmap(-1, 1009 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for n in range(101):
    memory[n * 4096] = 1
print(ctypes.addressof(ctypes.c_char.from_buffer(memory)), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        yield process
        process.kill()


def report_of(
    spaces: MemoryBreakdown, pid: int, space: AddressMap | None = None, table: SiteTable | None = None
) -> AddressSpaceReport:
    return spaces.report(pid, space, table or SiteTable(0), attached_s=2.5, events_lost=7)


def test_what_a_process_maps_after_the_attach_is_growth(program):
    """And its call site's, with what of it is in memory."""
    info = read_process(program.pid)
    spaces = MemoryBreakdown()
    spaces.follow(info)
    space = AddressMap(read_mappings(program.pid))
    program.stdin.write("\n")
    program.stdin.flush()
    site = SiteKey(AllocationKind.MMAP, 23)
    space.mapped(int(program.stdout.readline()), 1009 * PAGE, site, 1, program.pid)

    report = report_of(spaces, program.pid, space)

    assert (report.pid, report.comm, report.attached_s) == (program.pid, info.comm, 2.5)
    mmap = next(use for use in report.uses if use.use == "mmap")
    assert mmap.virtual_growth_bytes >= 1009 * PAGE
    assert mmap.resident_growth_bytes >= 101 * PAGE
    assert report.shares.tracked_mmap_bytes == 101 * PAGE
    assert sum(use.resident_bytes for use in report.uses) == report.resident_bytes
    assert report.peak_resident_bytes > 0
    assert report.losses == {
        "event_full": 7,
        "region_full": 0,
        "mappings_left_out": 0,
        "resident_bytes_estimated": 0,
        "perf_map_refused": 0,
        "perf_map_skipped_bytes": 0,
    }


def test_live_heap_blocks_are_those_of_heap_sites(program):
    """Mappings are in the table of sites, too, and counted by their pages."""
    spaces = MemoryBreakdown()
    spaces.follow(read_process(program.pid))
    table = SiteTable(0)
    keys = [SiteKey(AllocationKind.HEAP, 1), SiteKey(AllocationKind.MMAP, 2), SiteKey(AllocationKind.HEAP, 3)]
    table.update(1, keys, counter_rows([(5, 1, 5, 1), (1000, 1, 1000, 1), (2, 1, 2, 1)]))
    assert report_of(spaces, program.pid, table=table).shares.tracked_heap_bytes == 7


def test_new_methods_are_summed_up_over_the_reports(program, tmp_path):
    """And restarted with a rewritten map."""
    info = read_process(program.pid)
    # The perf map is looked for in the process' own /tmp: an entry of /proc with another root.
    proc = tmp_path / "proc"
    (proc / str(program.pid) / "root/tmp").mkdir(parents=True)
    for name in ("smaps", "status", "pagemap", "task"):
        (proc / str(program.pid) / name).symlink_to(f"/proc/{program.pid}/{name}")
    perf_map = proc / str(program.pid) / "root/tmp" / f"perf-{info.namespace_pid}.map"
    perf_map.write_text("1000 10 old::x\n")
    spaces = MemoryBreakdown(proc)
    spaces.follow(replace(info, uid=perf_map.stat().st_uid))

    def modules() -> list[tuple[str, int]]:
        return [(m.module, m.new_methods) for m in report_of(spaces, program.pid).jit_modules]

    assert modules() == []
    for n in range(1, 4):
        with perf_map.open("a") as file:
            file.write(f"{n}000 10 new::x{n}\n")
        assert modules() == [("new", n)]
    perf_map.write_text("1000 10 other::x\n")
    assert modules() == [("other", 1)]


def test_a_process_that_ended_is_an_error(program):
    """At the attach it is not: then it merely has no growth."""
    info: ProcessInfo = read_process(program.pid)
    spaces = MemoryBreakdown()
    spaces.follow(info)
    program.kill()
    program.wait()
    with pytest.raises(errors.NoSuchProcess):
        report_of(spaces, program.pid)
    spaces.follow(info)
    spaces.forget(program.pid)
    spaces.forget(program.pid)


def test_a_process_that_could_not_be_read_at_the_attach_has_no_growth(program, tmp_path: Path):
    """All that it has would be growth otherwise."""
    proc = tmp_path / "proc"
    spaces = MemoryBreakdown(proc)
    spaces.follow(read_process(program.pid))
    proc.symlink_to("/proc")
    assert {use.virtual_growth_bytes for use in report_of(spaces, program.pid).uses} == {0}


def test_a_process_that_is_only_watched_has_an_allocator_without_books(tmp_path: Path):
    """Known by its library's name: what may be its memory is unknown, and no mapping of the program's."""
    library = tmp_path / "libjemalloc.so.2"
    library.write_bytes(bytes(PAGE))
    maps_it = f"import mmap; file = open({str(library)!r}, 'r+b'); kept = mmap.mmap(file.fileno(), 0)\n"
    with subprocess.Popen(
        [sys.executable, "-c", maps_it + _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        lines, _container = MemoryBreakdown().quick_bill(process.pid)
        process.kill()
    bill = {line.kind: line for line in lines}
    assert BillKind.MMAP not in bill
    assert bill[BillKind.UNKNOWN].bytes >= 101 * PAGE
    assert "jemalloc, whose books cannot be read" in bill[BillKind.UNKNOWN].note


def test_growth_is_counted_from_when_the_runtime_told(program):
    """Its contents were there before; what follows is growth."""
    spaces = MemoryBreakdown()
    spaces.follow(read_process(program.pid))

    def growth(live_bytes: int | None, attached_s: float) -> dict[BillKind, float | None]:
        managed = ManagedHeap("JVM", Verdict.STEADY, "", live_bytes, 1, 0, 0.0)
        lines, _container = spaces.quick_bill(program.pid, None, managed, attached_s)
        return {line.kind: line.growth_bytes_per_s for line in lines}

    assert growth(None, 1.0)[BillKind.MMAP] is not None
    assert set(growth(2 * PAGE, 10.0).values()) == {None}
    assert growth(3 * PAGE, 11.0)[BillKind.MANAGED_LIVE] == PAGE


def test_a_heap_of_go_is_told_by_where_it_is():
    """Its arenas lie where no other program has any memory; its profile says what of it is live."""
    code = """
import ctypes, sys
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_void_p
mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
at = mmap(0xC000000000, 101 * 4096, 3, 0x100022, -1, 0)
ctypes.memset(at, 1, 101 * 4096)
print(at, flush=True)
sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert int(process.stdout.readline()) == 0xC000000000
        go = SimpleNamespace(live_bytes=23 * PAGE, is_alone=False)
        lines, _container = MemoryBreakdown().quick_bill(process.pid, go=go)
        process.kill()
    bill = {line.kind: line.bytes for line in lines}
    assert bill[BillKind.MANAGED_LIVE] == 23 * PAGE
    assert bill[BillKind.MANAGED_FREE] == 78 * PAGE
