"""System calls of a process with a sampler inside are seen where it makes them, unless that does not suit."""

from __future__ import annotations

from typing import Any

import pytest

from .daemons import expect_heap_grew
from .truth import by_function, expect_ledger, expect_no_losses, site_of
from .waiting import wait_until

MAPPED = ("mmap", "commit")
# Links to tracepoints.
AT_TRACEPOINTS = "perf_event"


@pytest.fixture
def tracer(daemon):
    """A daemon that sees other calls at tracepoints, wherever this runs."""
    return daemon(syscall_method="tracepoints")


def links_to_tracepoints(tracer) -> int:
    return list(tracer.note_objects().ids["link"].values()).count(AT_TRACEPOINTS)


def expect_mapped(report: dict[str, Any], ledger: dict[str, Any]) -> None:
    """The sums of mapped memory by function are those of the ledger."""
    found = by_function({"sites": [site for site in report["sites"] if site["kind"] in MAPPED]})
    wanted = {function: sums for function, sums in ledger["sites"].items() if function != "keep_large_blocks"}
    assert found == wanted


@pytest.mark.parametrize("attach_method", ["session", "multi", "perf"])
def test_every_way_to_change_the_address_space_is_counted_exactly(daemon, preloaded, attach_method):
    """mmap, munmap, MAP_FIXED, mremap, mprotect and madvise, partial and failing, without a tracepoint."""
    program = preloaded("mappings")
    tracer = daemon(attach_method=attach_method, syscall_method="tracepoints")
    before = links_to_tracepoints(tracer)
    tracer.attach(program.pid)

    program.step()
    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    assert report["process"]["mode"] == "inside"
    expect_mapped(report, ledger)
    expect_no_losses(report)
    assert all(site["truncated"] is None for site in report["sites"])
    assert site_of(report, "keep_mappings")["stack"][-1]["function"] == "_start"
    if attach_method != "perf":
        assert links_to_tracepoints(tracer) == before


def test_a_process_beside_it_is_seen_in_the_kernel(tracer, preloaded, workload):
    """Each call of each counts once, whichever is traced first, and after the other has gone."""
    inside, exact = preloaded("mappings"), workload("mappings")
    tracer.attach(inside.pid)
    inside.step()
    tracer.attach(exact.pid)
    inside.step()
    exact.step()
    wanted = inside.step(), exact.step()

    expect_mapped(tracer.top_after_tick(inside.pid), wanted[0])
    report = tracer.top_after_tick(exact.pid)
    report["sites"] = [site for site in report["sites"] if site["kind"] != "file"]
    expect_ledger(report, wanted[1])

    tracer.detach(exact.pid)
    expect_mapped((inside.step(), tracer.top_after_tick(inside.pid))[1], inside.ledger())


def test_two_processes_share_the_places(tracer, preloaded):
    """They have the same C library: the second one's probes are shared ones."""
    first, second = preloaded("mappings"), preloaded("mappings")
    tracer.attach(first.pid)
    tracer.attach(second.pid)

    ledgers = [program.step() for program in (first, second)]
    for program, ledger in zip((first, second), ledgers, strict=True):
        expect_mapped(tracer.top_after_tick(program.pid), ledger)

    tracer.detach(first.pid)
    ledger = second.step()
    expect_mapped(tracer.top_after_tick(second.pid), ledger)


def test_a_killed_daemon_is_replaced_and_nothing_is_lost(tracer, preloaded):
    program = preloaded("mappings")
    tracer.attach(program.pid)
    program.step()

    tracer.kill()
    program.step()
    tracer.start()
    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    assert tracer.process(program.pid)["adopted_count"] == 1
    expect_mapped(report, ledger)
    expect_no_losses(report)


def test_calls_that_other_code_makes_are_noticed(tracer, preloaded):
    """The process is then watched in the kernel, which sees all of its calls, and each of them once."""
    program = preloaded("raw_calls")
    tracer.attach(program.pid)
    missed = 0

    def is_watched() -> bool:
        nonlocal missed
        missed += 1
        program.step(1)
        return bool(tracer.events("space.watched-in-kernel"))

    wait_until(is_watched, timeout_s=150)
    ledger = program.step(1_000)

    report = tracer.top_after_tick(program.pid)
    found, wanted = by_function(report), ledger["sites"]
    assert wanted["map_by_itself"]["live_count"] - missed <= found["map_by_itself"]["live_count"]
    assert found["map_by_itself"]["live_count"] <= wanted["map_by_itself"]["live_count"]
    assert found["map_by_libc"]["live_bytes"] == wanted["map_by_libc"]["live_bytes"]
    (event,) = tracer.events("space.watched-in-kernel")
    assert event["reason"] == "it makes system calls at unknown places"
    tracer.kill()
    tracer.start()
    ledger = program.step(10)
    again = by_function(tracer.top_after_tick(program.pid))["map_by_itself"]
    assert again["live_count"] == found["map_by_itself"]["live_count"] + 10


def test_a_process_that_makes_calls_all_the_time_is_watched_in_the_kernel(tracer, preloaded):
    """A trap for each of them would cost more. Its heap is counted as before."""
    program = preloaded("arena_growth")
    tracer.attach(program.pid)
    program.step(1_000)
    tracer.wait_for_ticks(2)

    wait_until(lambda: (program.step(30_000), tracer.events("space.watched-in-kernel"))[1], timeout_s=30)
    program.step(30_000)

    (event,) = tracer.events("space.watched-in-kernel")
    assert event["reason"].startswith("it changes its address space ")
    tracer.wait_for_ticks(2)
    expect_heap_grew(tracer, program.pid, 60_000_000)
    expect_no_losses(tracer.top_after_tick(program.pid))


def test_calls_that_were_not_made_change_nothing(tracer, preloaded):
    """The process jumps behind a call, as if it had got more addresses than there are."""
    program = preloaded("raw_calls")
    tracer.attach(program.pid)

    program.step(-1_000)
    tracer.top_after_tick(program.pid)
    ledger = program.step(-1)

    report = tracer.top_after_tick(program.pid)
    found, wanted = by_function(report), ledger["sites"]
    assert found.keys() == {"map_by_libc"}
    assert found["map_by_libc"]["live_bytes"] == wanted["map_by_libc"]["live_bytes"]
    assert not tracer.events("process.set-aside")
