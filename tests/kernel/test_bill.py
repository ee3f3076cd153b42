"""The bill of a process' memory, against glibc's own figures and the kernel's."""

from __future__ import annotations

import ctypes.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from .machine import MIMALLOC
from .workloads import Workload, build

MIB = 1 << 20
# Three threads and the main one keep up to 64 lists of seven blocks each in their caches.
CACHED_MAX = 2 * MIB


def resident_bytes(pid: int) -> int:
    """Resident and swapped memory, by the kernel."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(value) * 1024 for value in re.findall(r"^(?:Rss|Swap):\s+(\d+)", rollup, re.MULTILINE))


def bill_of(tracer: Any, pid: int) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    report = json.loads(tracer.control("maps", "--pid", pid, "--json"))
    return {line["kind"]: line for line in report["bill"]}, report


@pytest.mark.parametrize("attached", ["before", "after"])
def test_freed_memory_is_told_from_live_blocks(tracer, workload, attached):
    """Four arenas, nine of ten blocks freed: the lines equal mallinfo2's, also from before the attach."""
    program = workload("fragmented")
    if attached == "before":
        tracer.attach_with_tables(program.pid)
    ledger = program.step(1)
    if attached == "after":
        tracer.attach_with_tables(program.pid)

    bill, report = bill_of(tracer, program.pid)

    total = sum(line["bytes"] for line in report["bill"])
    assert total == pytest.approx(resident_bytes(program.pid), rel=0.05)
    assert bill.get("unknown", {"bytes": 0})["bytes"] < 0.05 * total
    free = bill["heap_free"]["bytes"]
    assert ledger["free_bytes"] - MIB <= free <= ledger["free_bytes"] + CACHED_MAX
    live = ledger["arena_bytes"] - ledger["free_bytes"] + ledger["mapped_bytes"]
    assert live - CACHED_MAX <= bill["heap_live"]["bytes"] <= live + MIB
    assert "4 arenas of glibc" in bill["heap_free"]["note"]


@pytest.mark.parametrize("tunables", ["", "glibc.malloc.hugetlb=1"])
def test_arenas_with_free_chunks_of_nearly_all_sizes(tracer, tunables):
    """Hardly a list is empty, heaps lie behind each other, and huge pages cut mappings: nothing is lost."""
    environment = ["MALLOC_ARENA_MAX=2", f"GLIBC_TUNABLES={tunables}"]
    program = Workload(["env", *environment, build("crowded")])
    try:
        ledger = program.step(1)
        tracer.attach(program.pid)
        bill, report = bill_of(tracer, program.pid)
    finally:
        program.kill()

    assert "2 arenas of glibc" in bill["heap_free"]["note"]
    assert ledger["free_bytes"] - MIB <= bill["heap_free"]["bytes"] <= ledger["free_bytes"] + CACHED_MAX
    live = ledger["arena_bytes"] - ledger["free_bytes"] + ledger["large_bytes"]
    assert live - CACHED_MAX <= bill["heap_live"]["bytes"] <= live + MIB
    assert sum(line["bytes"] for line in report["bill"]) == pytest.approx(
        report["resident_bytes"] + report["swap_bytes"], rel=0.05
    )


def test_growth_without_a_leak_is_called_what_it_is(tracer, workload):
    """A sentence says that the allocator keeps freed memory, and what malloc_trim gives back is right."""
    program = workload("fragmented")
    tracer.attach_with_tables(program.pid)
    program.step(1)

    _bill, report = bill_of(tracer, program.pid)
    summary = report["growth_summary"]
    assert re.match(r"memory grows .*: \d+% of it is freed memory that the allocator keeps", summary)
    assert "not a leak" in summary

    held = float(re.search(r"fragmentation holds ([0-9.]+) MiB", summary)[1]) * MIB
    sites = report["pinned_by"]
    assert {site["function"] for site in sites} == {"fragment"}, "of two stacks: of the threads, and of main"
    assert 0.75 * held < sum(site["free_bytes"] for site in sites) <= 1.02 * held
    assert sum(site["blocks"] for site in sites) <= program.ledger()["live_count"]
    assert "live blocks of fragment" in tracer.control("maps", "--pid", program.pid)

    promised = re.search(r"malloc_trim would return ([0-9.]+) MiB", summary)
    before = resident_bytes(program.pid)
    program.step(2)
    given_back = before - resident_bytes(program.pid)
    assert float(promised[1]) * MIB == pytest.approx(given_back, rel=0.1)


@pytest.mark.parametrize("attached", ["before", "after"])
@pytest.mark.parametrize("library", ["libtcmalloc.so.4", "libtcmalloc_minimal.so.4"])
def test_what_tcmalloc_keeps(tracer, library, attached):
    """The free memory of its page heap equals its own statistics, also from before the attach."""
    if ctypes.util.find_library(library.removeprefix("lib").removesuffix(".so.4")) is None:
        pytest.skip(f"needs {library}: apt install libgoogle-perftools4")
    program = Workload(["env", f"LD_PRELOAD={library}", build("page_heap")])
    try:
        if attached == "before":
            tracer.attach_with_tables(program.pid)
        ledger = program.step()
        if attached == "after":
            tracer.attach_with_tables(program.pid)
        bill, report = bill_of(tracer, program.pid)
    finally:
        program.kill()

    assert ledger["free_bytes"] > 70 * MIB
    assert bill["heap_free"]["bytes"] == pytest.approx(ledger["free_bytes"], abs=MIB)
    in_use = ledger["heap_bytes"] - ledger["free_bytes"]
    assert bill["heap_live"]["bytes"] == pytest.approx(in_use, abs=3 * MIB)
    assert "tcmalloc" in bill["heap_free"]["note"]
    assert sum(line["bytes"] for line in report["bill"]) == pytest.approx(
        report["resident_bytes"] + report["swap_bytes"], rel=0.05
    )


@pytest.mark.parametrize("mode", ["inside", "exact"])
@pytest.mark.parametrize("after", ["", "libjemalloc.so.2"], ids=["glibc", "jemalloc"])
def test_the_sampler_inside_has_no_heap(tracer, preloaded, after, mode):
    """Its blocks belong to the program's allocator, whose books are read, or are not."""
    if after and ctypes.util.find_library("jemalloc") is None:
        pytest.skip(f"needs {after}")
    program = preloaded("fragmented", after=f":{after}" if after else "")
    # Without the tables, the caller of mmap is unknown, and so is what is jemalloc's.
    tracer.attach_with_tables(program.pid, "--mode", mode)
    program.step(1)

    bill, _report = bill_of(tracer, program.pid)

    note = bill["heap_live"]["note"] or ""
    unread = "freed memory that jemalloc keeps: its books cannot be read"
    assert (unread in note) if after else ("cannot be read" not in note)


@pytest.mark.parametrize("library", ["libjemalloc.so.2", MIMALLOC])
def test_what_is_unknown_of_other_allocators(tracer, library):
    """Their libraries have no symbols for their books: the bill says so, and how much is live for sure."""
    if ctypes.util.find_library(library.removeprefix("lib").partition(".")[0]) is None:
        pytest.skip(f"needs {library}")
    program = Workload(["env", f"LD_PRELOAD={library}", build("fragmented")])
    try:
        tracer.attach_with_tables(program.pid)
        ledger = program.step(1)
        bill, report = bill_of(tracer, program.pid)
        heap = [site for site in tracer.top(program.pid)["sites"] if site["kind"] == "heap"]
    finally:
        program.kill()
    name = library.removeprefix("lib").partition(".")[0]
    if library == "libmimalloc.so.3.0":
        # It reserves a GiB at its start, before the attach.
        assert bill["unknown"]["note"].startswith("mapped before the attach: by mimalloc, whose books")
        assert bill["unknown"]["bytes"] > ledger["live_bytes"]
        return
    note = bill["heap_live"]["note"]
    assert note.startswith(f"including freed memory that {name} keeps: its books cannot be read; at least ")
    known = float(re.search(r"at least ([0-9.]+) MiB are live", note)[1]) * MIB
    assert known == pytest.approx(sum(site["live_bytes"] for site in heap), rel=0.02)
    assert known >= ledger["live_bytes"]
    assert bill["heap_live"]["bytes"] > known
    assert name in bill["unknown"]["note"]
    total = sum(line["bytes"] for line in report["bill"])
    assert total == pytest.approx(report["resident_bytes"] + report["swap_bytes"], rel=0.05)
