"""Estimates from sampled blocks are right on average, and say how far off they may be.

Call sites that all do the same are as many samples of one estimate. The bounds are 4.5 standard errors wide:
an unlucky draw fails a test once in 100,000 times. tests/unit/kernel/test_sampling.py has the tight ones.
"""

from __future__ import annotations

import math
import statistics

import pytest

from .truth import expect_ledger, expect_no_losses

STACKS = 256
INTERVAL_BYTES = 4096
FAR = 4.5

SMALL = (8, 48, 200)
MIXED = (24, 700, 3_000, 20_000)
HUGE = (100_000, 1_000_003)


@pytest.fixture
def sampler(daemon):
    """A daemon that records one block in 4 KiB."""
    return daemon(sampling={"interval_bytes": INTERVAL_BYTES})


def attach(tracer, program, mode: str = "sampled") -> None:
    tracer.control("attach", program.pid, "--mode", mode)


def expect_mean(values: list[float], truth: float) -> None:
    """Fail unless independent estimates of `truth` are right on average."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert abs(statistics.fmean(values) - truth) <= max(FAR * error, 0.5)


def expect_coverage(values: list[float], stderrs: list[float], truth: float) -> None:
    """Fail unless 95 in 100 of the intervals of 1.96 standard errors hold the truth, or nearly."""
    inside = sum(abs(v - truth) <= 1.96 * e + 0.5 for v, e in zip(values, stderrs, strict=True))
    slack = FAR * math.sqrt(0.95 * 0.05 / len(values))
    assert 0.92 - slack <= inside / len(values)


@pytest.mark.parametrize(
    ("function", "sizes", "rounds"),
    [
        ("malloc", SMALL, 1_000),
        ("malloc", MIXED, 60),
        ("malloc", HUGE, 2),
        ("calloc", SMALL, 300),
        ("realloc", SMALL, 300),
        ("memalign", SMALL, 300),
        ("posix_memalign", SMALL, 300),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_estimates_are_right_on_average(sampler, workload, function, sizes, rounds):
    """At 256 call sites, for bytes and blocks, live and allocated, also where functions are nested."""
    program = workload("sampling", function, STACKS, *sizes)
    attach(sampler, program)

    ledger = program.step(rounds)

    report = sampler.top_after_tick(program.pid)
    sites = report["sites"]
    truth = ledger["sites"]["allocate_at_leaf"]
    for figure in ("live_bytes", "live_count", "allocated_bytes", "allocated_count"):
        values = [site[figure] for site in sites] + [0] * (STACKS - len(sites))
        expect_mean(values, truth[figure] / STACKS)
    for figure in ("live_bytes", "live_count"):
        total, error = report["process"][figure], report["process"][f"{figure}_stderr"]
        assert abs(total - truth[figure]) <= FAR * error + 1
    if function == "malloc":
        # Bytes alone: a block of 8 of them stands for 512 blocks, and a site has two or three such.
        stderrs = [site["live_bytes_stderr"] for site in sites]
        expect_coverage([site["live_bytes"] for site in sites], stderrs, truth["live_bytes"] / STACKS)
    expect_no_losses(report)
    assert report["process"]["mode"] == "sampled"
    assert report["process"]["sample_interval_bytes"] == INTERVAL_BYTES
    if min(sizes) > 16 * INTERVAL_BYTES:
        expect_ledger(report, ledger)


def test_frees_take_away_what_the_blocks_added(daemon, workload):
    """Exact at first, then sampled because of the budget, in mid-flight: at the end nothing remains."""
    program = workload("sampling", "malloc", STACKS, *MIXED)
    tracer = daemon(sampling={"target_events_per_s": 500})
    attach(tracer, program, "auto")

    # given a process that becomes too much, and more so
    for _round in range(4):
        ledger = program.step(12)
        report = tracer.top_after_tick(program.pid)
    process = report["process"]
    assert process["mode"] == "sampled"
    assert process["sample_interval_bytes"] >= INTERVAL_BYTES
    assert abs(process["live_bytes"] - ledger["live_bytes"]) <= FAR * process["live_bytes_stderr"]
    assert "process.sampling-changed" in tracer.log

    # when all is freed
    program.step(-1)

    # then no site has anything, or less
    report = tracer.top_after_tick(program.pid)
    assert report["process"]["live_bytes"] == report["process"]["live_count"] == 0
    assert {site["live_bytes"] for site in report["sites"]} == {0}
    assert {site["live_count"] for site in report["sites"]} == {0}
    assert report["process"]["live_bytes_stderr"] == 0
    assert report["process"]["unmatched_frees"] == 0


@pytest.mark.parametrize("walker", ["may_goto", "tail_calls"])
@pytest.mark.parametrize("method", ["session", "multi", "perf"])
def test_every_way_to_attach_samples(daemon, workload, method, walker):
    """Whether the return probe can be declined or not."""
    program = workload("sampling", "malloc", STACKS, *SMALL)
    tracer = daemon(attach_method=method, walker=walker, sampling={"interval_bytes": INTERVAL_BYTES})
    attach(tracer, program)

    ledger = program.step(100)

    process = tracer.top_after_tick(program.pid)["process"]
    for figure in ("live_bytes", "live_count"):
        assert 0 < abs(process[figure] - ledger[figure]) <= FAR * process[f"{figure}_stderr"]


def test_a_process_that_allocates_little_is_recorded_exactly(daemon, workload):
    """Mode auto costs it nothing in truth."""
    program = workload("sampling", "malloc", 23, *MIXED)
    tracer = daemon()
    attach(tracer, program, "auto")

    ledger = program.step(4)

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    assert report["process"]["mode"] == "exact"
    assert report["process"]["sample_interval_bytes"] is None


def test_the_memory_that_malloc_maps_is_the_heaps(sampler, workload):
    """Also where its return is not waited for: no mapping of the allocator's is a call site."""
    program = workload("sampling", "malloc", 1, 30_000)
    attach(sampler, program)

    program.step(3_000)

    report = sampler.top_after_tick(program.pid)
    assert {site["kind"] for site in report["sites"]} == {"heap"}


def test_the_blocks_that_are_listed_say_how_many_they_stand_for(sampler, workload):
    """Together they make up the estimate."""
    program = workload("sampling", "malloc", 4, *SMALL)
    attach(sampler, program)

    program.step(500)

    report = sampler.blocks(program.pid, "--limit", 100_000)
    blocks = [block for site in report["sites"] for block in site["blocks"]]
    assert report["left_out_count"] == 0
    assert len(blocks) < report["live_count"] / 4
    assert sum(block["weight"] for block in blocks) == pytest.approx(report["live_count"], abs=4)
    live_bytes = sum(block["weight"] * block["size_bytes"] for block in blocks)
    assert live_bytes == pytest.approx(report["live_bytes"], rel=1e-3)
