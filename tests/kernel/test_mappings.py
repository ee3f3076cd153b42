"""The address space of real programs: every mapping has a call site, and nothing is counted twice."""

from __future__ import annotations

import pytest

from .daemons import expect_heap_grew, maps_of
from .kernel_objects import space_events_so_far
from .truth import by_function, expect_ledger, expect_no_losses, site_of
from .waiting import wait_until

KIND_OF = {
    "keep_mappings": "mmap",
    "punch_holes": "mmap",
    "replace_the_middle": "mmap",
    "map_to_be_replaced": "mmap",
    "grow_by_mremap": "mmap",
    "map_to_grow": "mmap",
    "map_and_unmap": "mmap",
    "commit_pieces": "commit",
    "keep_large_blocks": "heap",
}


def without_files(report: dict) -> dict:
    """The report without mappings of files, which are sites but not part of the totals."""
    return report | {"sites": [site for site in report["sites"] if site["kind"] != "file"]}


@pytest.mark.parametrize("walker", ["may_goto", "tail_calls"])
def test_every_way_to_change_the_address_space_is_counted_exactly(daemon, workload, walker):
    """mmap, munmap, MAP_FIXED, mremap, mprotect and madvise, partial and failing, against the ledger."""
    program = workload("mappings")
    tracer = daemon(walker=walker)
    tracer.attach(program.pid)

    program.step()
    ledger = program.step()

    report = without_files(tracer.top_after_tick(program.pid))
    expect_ledger(report, ledger)
    expect_no_losses(report)


def test_each_mapping_has_its_kind_and_its_whole_stack(daemon, workload):
    """Heap blocks that malloc maps are heap; commits are apart from mappings; files are files."""
    program = workload("mappings")
    tracer = daemon()
    tracer.attach(program.pid)

    program.step()

    report = tracer.top_after_tick(program.pid)
    for function, kind in KIND_OF.items():
        site = site_of(report, function)
        assert (function, site["kind"]) == (function, kind)
        assert site["stack"][-1]["function"] == "_start"
        assert site["truncated"] is None
    file_site = site_of(report, "map_file")
    assert (file_site["kind"], file_site["live_bytes"]) == ("file", 4 * 4096)


def test_mappings_have_ages_and_threads(daemon, workload):
    """As heap blocks have them."""
    program = workload("mappings")
    tracer = daemon()
    tracer.attach(program.pid)

    program.step()

    site = site_of(tracer.top_after_tick(program.pid), "keep_mappings")
    everything = {"live_bytes": site["live_bytes"], "live_count": 23}
    assert site["threads"] == [{"tid": program.pid, "comm": "mappings", **everything}]
    assert 0 < site["oldest_age_s"] < 30


def test_thread_stacks_are_told_apart(daemon, workload):
    """They belong to the creating thread's call site, as a separate kind, beside pthread_create's heap
    blocks.
    """
    program = workload("thread_stacks")
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step(3)

    stacks = [s for s in tracer.top_after_tick(program.pid)["sites"] if s["kind"] == "thread-stack"]
    assert by_function({"sites": stacks}) == ledger["sites"]


def test_nothing_is_watched_when_nothing_is_traced(daemon, workload):
    """The programs at system calls are detached soon after the last process, and not before."""
    first, second = workload("mappings"), workload("mappings")
    tracer = daemon()

    def links() -> set[tuple[int, str]]:
        return set(tracer.note_objects().ids["link"].items())

    idle = links()
    tracer.attach(first.pid)
    one = links()
    at_calls = {link for link in one - idle if link[1] in ("perf_event", "kprobe_multi")}
    tracer.attach(second.pid)
    tracer.detach(second.pid)
    wait_until(lambda: links() <= one)

    assert at_calls
    assert at_calls <= links()
    tracer.detach(first.pid)
    wait_until(lambda: links() == idle)


def test_an_arena_that_grows_by_pages_is_reported_by_megabytes(daemon, workload):
    """20 MB of blocks in two threads' arenas, 5,000 calls of mprotect: the heap's, and no others'."""
    program = workload("arena_growth")
    tracer = daemon()
    tracer.attach(program.pid)
    before = space_events_so_far(tracer.bpffs_dir)

    ledger = program.step(10_000)

    assert 20 <= space_events_so_far(tracer.bpffs_dir) - before < 100
    report = without_files(tracer.top_after_tick(program.pid))
    expect_ledger(report, ledger)
    expect_no_losses(report)
    expect_heap_grew(tracer, program.pid, 20_000_000)


@pytest.mark.parametrize("mode", ["exact", "inside"])
def test_of_mallocs_moves_of_the_break_only_the_result_is_reported(daemon, workload, preloaded, mode):
    """4,000 moves, up and down, and 20 by the program itself, which are exact all the same."""
    program = (preloaded if mode == "inside" else workload)("heap_end")
    tracer = daemon()
    tracer.attach(program.pid)
    # From inside, the first stacks show where malloc calls sbrk.
    program.step(100)
    tracer.wait_for_ticks(2)
    before = space_events_so_far(tracer.bpffs_dir)

    ledger = program.step(2_000)

    assert space_events_so_far(tracer.bpffs_dir) - before < 100
    report = without_files(tracer.top_after_tick(program.pid))
    assert by_function(report)["extend"] == ledger["sites"]["extend"]
    if mode == "exact":
        expect_ledger(report, ledger)
    expect_no_losses(report)
    grown = {use["use"]: use["resident_growth_bytes"] for use in maps_of(tracer, program.pid)["uses"]}
    assert grown["heap"] >= ledger["sites"]["keep"]["live_bytes"]
