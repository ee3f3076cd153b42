"""Programs that are preempted at any moment, on one processor: the books are exact, the kernel is well.

A kernel that is not well says so in its log, which scripts/test-vm reads, or ends.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from ..kernel.daemons import Daemon, DaemonFailed
from ..kernel.machine import cannot_run
from ..kernel.truth import expect_ledger, expect_no_losses, names

THREADS = 48
SITES = 32
# Of each thread.
BLOCKS = int(os.environ.get("PREEMPTION_BLOCKS", "40"))
INTERVAL_BYTES = 4096
# An estimate is not that many standard errors wrong.
FAR = 6.0


def depth_of(site: int) -> int:
    """As in preempted.c."""
    return site * 7 % 24


@pytest.fixture
def tracing(daemon):
    """A factory of daemons; a kernel that has not got the way to attach cannot run the test."""

    def start(method: str, walker: str, **configuration: object) -> Daemon:
        try:
            return daemon(attach_method=method, walker=walker, **configuration)
        except DaemonFailed as failure:
            if failure.exit_code == 10:  # KernelUnsupported
                cannot_run(f"this kernel has no {method} with {walker}")
            raise

    return start


@pytest.mark.parametrize("walker", ["may_goto", "tail_calls"])
@pytest.mark.parametrize("method", ["session", "multi", "perf"])
def test_every_count_size_and_frame_is_right(tracing, workload, method, walker):
    """However often the threads preempt each other, whatever they are attached by."""
    tracer = tracing(method, walker)
    program = workload("preempted", THREADS)
    tracer.attach_with_tables(program.pid)

    ledger = program.step(BLOCKS, timeout_s=300)

    report = tracer.top_after_tick(program.pid)
    expect_no_losses(report)
    expect_ledger(report, ledger)
    expect_stacks(report)
    assert report["process"]["unmatched_frees"] == 0
    print("runs that the kernel left out:", tracer.events("programs.skipped")[-1:])
    # given all of it back
    expect_ledger_of_nothing(tracer, program)


@pytest.mark.parametrize("method", ["session", "multi", "perf"])
def test_what_is_sampled_is_right(tracing, workload, method):
    """Estimates are near the truth, and nothing is left when all is freed."""
    tracer = tracing(method, "auto", sampling={"interval_bytes": INTERVAL_BYTES})
    program = workload("preempted", THREADS)
    tracer.attach_with_tables(program.pid, "--mode", "sampled")

    ledger = program.step(BLOCKS, timeout_s=300)

    report = tracer.top_after_tick(program.pid)
    expect_no_losses(report)
    expect_stacks(report)
    process = report["process"]
    for figure in ("live_bytes", "live_count"):
        assert abs(process[figure] - ledger[figure]) <= FAR * process[f"{figure}_stderr"] + 1
    expect_ledger_of_nothing(tracer, program)


def test_a_second_process_shares_probes(tracing, workload):
    """By tracing events; both run on the same processor."""
    tracer = tracing("auto", "auto")
    programs = [workload("preempted", THREADS // 2) for _ in range(2)]
    for program in programs:
        tracer.attach_with_tables(program.pid)

    for program in programs:
        program.start_step(BLOCKS)
    ledgers = [program.finish_step(timeout_s=300) for program in programs]

    for program, ledger in zip(programs, ledgers, strict=True):
        report = tracer.top_after_tick(program.pid)
        expect_no_losses(report)
        expect_ledger(report, ledger)
        expect_stacks(report)


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
    expect_no_losses(report)
    assert (report["process"]["live_bytes"], report["process"]["live_count"]) == (0, 0)
    assert {(site["live_bytes"], site["live_count"]) for site in report["sites"]} == {(0, 0)}
