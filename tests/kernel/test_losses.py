"""A full table refuses and counts: whatever was missed is a figure of the report."""

from __future__ import annotations

import subprocess
import sys

from .truth import by_function


def test_blocks_beyond_the_live_table_are_refused_and_counted(daemon, workload):
    """101 of 1,009 blocks find room: the oldest ones stay, the others are in losses."""
    program = workload("many_sites", 1)
    tracer = daemon(limits={"live_blocks": 101})
    tracer.attach(program.pid)

    ledger = program.step(1009)

    report = tracer.top_after_tick(program.pid)
    assert report["process"]["live_count"] == 101
    assert report["losses"]["live_full"] == ledger["live_count"] - 101


def test_a_full_live_table_takes_blocks_again_when_some_were_freed(daemon, workload):
    """Blocks are recorded again once the program has freed some."""
    program = workload("churn")
    tracer = daemon(limits={"live_blocks": 1})
    tracer.attach(program.pid)

    program.step(10_007)

    report = tracer.top_after_tick(program.pid)
    assert report["process"]["allocated_count"] == 10_007
    assert report["process"]["live_count"] == 0
    assert report["losses"]["live_full"] == 0


def test_allocations_beyond_the_sites_table_are_still_in_the_total(daemon, workload):
    """A new call site without room is counted under no name, and said to be lost."""
    program = workload("many_sites", 101)
    tracer = daemon(limits={"sites": 23})
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    named = by_function(report).get("allocate_at_leaf", {"live_count": 0})["live_count"]
    assert 0 < named < ledger["live_count"]
    assert report["losses"]["site_full"] > 0
    assert report["process"]["live_count"] == ledger["live_count"]
    assert report["process"]["live_bytes"] == ledger["live_bytes"]


def test_one_process_cannot_take_the_room_of_the_others(daemon, workload):
    """What exceeds its share is in its totals, without a name; another process has all its sites."""
    greedy, other = workload("many_sites", 101), workload("many_sites", 5)
    tracer = daemon(limits={"sites": 64, "process_sites": 23})
    tracer.attach(greedy.pid)
    tracer.attach(other.pid)

    ledger = greedy.step()
    expected = other.step()

    report = tracer.top_after_tick(greedy.pid)
    assert report["losses"]["site_full"] > 0
    assert report["process"]["live_bytes"] == ledger["live_bytes"]
    assert len(report["sites"]) <= 24, "its part, and the common site"
    report = tracer.top(other.pid)
    assert report["losses"]["site_full"] == report["losses"]["stack_full"] == 0
    assert report["process"]["live_bytes"] == expected["live_bytes"]
    assert by_function(report)["allocate_at_leaf"]["live_count"] == expected["live_count"]


def test_sites_without_room_for_their_stack_keep_their_figures(daemon, workload):
    """A full stack table costs names, not bytes."""
    program = workload("many_sites", 101)
    tracer = daemon(limits={"stacks": 23})
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    assert report["losses"]["stack_full"] > 0
    assert report["process"]["live_count"] == ledger["live_count"]
    assert report["process"]["live_bytes"] == ledger["live_bytes"]


def test_losses_of_one_process_are_not_shown_with_another(daemon, workload):
    """Each report has the losses of its own process."""
    crowded, calm = workload("many_sites", 1), workload("many_sites", 1)
    tracer = daemon(limits={"live_blocks": 101})
    tracer.attach(crowded.pid)
    tracer.attach(calm.pid)

    crowded.step(1009)
    calm.step(23)

    assert tracer.top_after_tick(crowded.pid)["losses"]["live_full"] > 0
    assert not any(tracer.top(calm.pid)["losses"].values())


def test_threads_without_room_are_counted_and_nothing_is_invented(daemon, workload):
    """Their blocks are not recorded, and the allocator's mappings for them are not charged to the program."""
    program = workload("preempted", 8)
    tracer = daemon(limits={"threads": 1})
    tracer.attach(program.pid)

    ledger = program.step(200)

    report = tracer.top_after_tick(program.pid)
    assert report["losses"]["thread_full"] > 0
    assert {site["kind"] for site in report["sites"]} <= {"heap"}
    assert report["process"]["live_bytes"] < ledger["live_bytes"]


_THREADS_THAT_STAY = """
import threading
over, kept = threading.Event(), []
def stay():
    kept.append(bytearray(100_000))
    over.wait()
input()
for _ in range(12):
    threading.Thread(target=stay, daemon=True).start()
while len(kept) < 12:
    pass
print("all", flush=True)
input()
"""


def test_threads_of_one_process_leave_room_for_those_of_others(daemon, workload):
    """A process may have entries for half of the threads, and its further threads are counted."""
    other = workload("preempted", 3)
    tracer = daemon(limits={"threads": 8})
    command = [sys.executable, "-c", _THREADS_THAT_STAY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as greedy:
        try:
            tracer.attach(greedy.pid)
            tracer.attach(other.pid)
            greedy.stdin.write(b"\n")
            greedy.stdin.flush()
            assert greedy.stdout.readline() == b"all\n"

            ledger = other.step(200)

            report = tracer.top_after_tick(other.pid)
            assert report["process"]["live_bytes"] == ledger["live_bytes"]
            assert report["losses"]["thread_full"] == 0
            assert tracer.top(greedy.pid)["losses"]["thread_full"] > 0
            tracer.detach(greedy.pid)
        finally:
            greedy.kill()
