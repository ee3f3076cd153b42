"""Programs that are preempted at any moment, on one processor: the books are exact, the kernel is well.

A kernel that is not well says so in its log, which scripts/test-vm reads, or ends.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from bpfleakd.kernel.programs import AttachMethod, WalkerKind

from ..kernel.conftest import place_of_daemon, running_daemon
from ..kernel.daemons import Daemon, DaemonFailed
from ..kernel.machine import cannot_run
from ..kernel.test_methods_of_kernels import best_method, best_walker
from ..kernel.truth import by_function, expect_ledger, expect_no_losses, names

THREADS = 48
SITES = 32
# Per thread.
BLOCKS = int(os.environ.get("PREEMPTION_BLOCKS", "100"))
INTERVAL_BYTES = 4096
# The daemon's exit code if the kernel has not got a way to attach.
UNSUPPORTED = 10
# An estimate is not that many standard errors wrong.
FAR = 6.0
# There a thread refills the memory of maps, sometimes at the next tick only (bpf/README.md, "Preemption").
# Until then what needs an entry is not recorded, but counted.
IS_REAL_TIME = "PREEMPT_RT" in os.uname().version
WITHOUT_MEMORY = {"live_full", "stack_full", "site_full", "thread_full"}


def depth_of(site: int) -> int:
    """As in preempted.c."""
    return site * 7 % 24


# The daemon's choice, and every available method.
WAYS = [("auto", "auto"), *((method, walker) for method in AttachMethod for walker in WalkerKind)]


@pytest.fixture(
    scope="module",
    params=WAYS,
    ids=lambda pair: "-".join(pair),
)
def tracer(request, tmp_path_factory):
    """One daemon for all tests with one way to attach and one walker; not every kernel has each."""
    method, walker = request.param
    directory, bpffs_dir, configuration = place_of_daemon(tmp_path_factory)
    configuration |= {
        "attach_method": method,
        "walker": walker,
        "sampling": {"interval_bytes": INTERVAL_BYTES},
    }
    try:
        with running_daemon(directory, bpffs_dir, configuration) as running:
            yield running
    except DaemonFailed as failure:
        if failure.exit_code == UNSUPPORTED:
            cannot_run(f"this kernel has no {method} with {walker}")
        raise


def test_the_best_way_is_taken(tracer):
    """The configured one; otherwise the best one that this kernel has."""
    configured = tracer.configuration["attach_method"], tracer.configuration["walker"]
    (loaded,) = tracer.events("kernel.loaded")
    print("attached by", loaded["method"], "with", loaded["walker"])
    best = best_method(), best_walker()
    assert (loaded["method"], loaded["walker"]) == (best if configured == ("auto", "auto") else configured)
    assert tracer.events("kernel.fallback") == []


def test_every_count_size_and_frame_is_right(tracer, workload):
    """However often the threads preempt each other."""
    program = workload("preempted", THREADS)
    tracer.attach_with_tables(program.pid)

    ledger = program.step(BLOCKS, timeout_s=300)

    report = tracer.top_after_tick(program.pid)
    expect_right(report, ledger)
    print("runs that the kernel left out:", tracer.events("programs.skipped")[-1:])
    # given all of it back
    expect_ledger_of_nothing(tracer, program)


def test_a_second_process_is_right_and_what_is_sampled(tracer, workload):
    """The second one has shared probes, where its kernel has any; both run on the same processor.

    Of the first one blocks are sampled: estimates are near the truth, and nothing is left when all is freed.
    """
    sampled, exact = (workload("preempted", THREADS // 2) for _ in range(2))
    tracer.attach_with_tables(sampled.pid, "--mode", "sampled")
    tracer.attach_with_tables(exact.pid)

    for program in (sampled, exact):
        program.start_step(BLOCKS)
    truth, ledger = (program.finish_step(timeout_s=300) for program in (sampled, exact))

    expect_right(tracer.top_after_tick(exact.pid), ledger)
    report = tracer.top_after_tick(sampled.pid)
    if not was_without_memory(report):
        expect_no_losses(report)
        expect_stacks(report)
        process = report["process"]
        for figure in ("live_bytes", "live_count"):
            assert abs(process[figure] - truth[figure]) <= FAR * process[f"{figure}_stderr"] + 1
    for program in (sampled, exact):
        expect_ledger_of_nothing(tracer, program)


def was_without_memory(report: dict) -> bool:
    """Whether the kernel had no memory at hand for a record, which may happen on PREEMPT_RT only."""
    missed = {reason: count for reason, count in report["losses"].items() if count}
    if missed:
        print("missed:", missed)
    return IS_REAL_TIME and bool(missed) and missed.keys() <= WITHOUT_MEMORY


def expect_right(report: dict, ledger: dict) -> None:
    """Exact. If the kernel had no memory at hand: nothing is invented, and what is missing is counted."""
    if not was_without_memory(report):
        expect_no_losses(report)
        expect_ledger(report, ledger)
        expect_stacks(report)
        assert report["process"]["unmatched_frees"] == 0
        return
    losses = report["losses"]
    missing = ledger["live_count"] - report["process"]["live_count"]
    assert 0 <= missing <= losses["live_full"] + losses["thread_full"]
    for name, figures in by_function(report).items():
        # With no stack they belong to no function.
        if name is not None:
            assert figures["live_bytes"] <= ledger["sites"][name]["live_bytes"]


def expect_stacks(report: dict) -> None:
    """Every site has one stack, of as many frames as its depth says."""
    sites = Counter(site["function"] for site in report["sites"])
    assert sites.keys() <= {f"site_{number:02}" for number in range(SITES)}
    assert set(sites.values()) == {1}, sites
    for site in report["sites"]:
        descents = depth_of(int(site["function"].removeprefix("site_"))) + 1
        callers = ["allocate", "body", "workload_thread"]
        expected = ["malloc", site["function"], *["descend"] * descents, *callers]
        assert names(site)[: len(expected)] == expected
        assert site["truncated"] is None


def expect_ledger_of_nothing(tracer: Daemon, program) -> None:
    """When the program has freed all its blocks, nothing is live."""
    program.step(0)
    report = tracer.top_after_tick(program.pid)
    if not was_without_memory(report):
        expect_no_losses(report)
    assert (report["process"]["live_bytes"], report["process"]["live_count"]) == (0, 0)
    assert {(site["live_bytes"], site["live_count"]) for site in report["sites"]} == {(0, 0)}
