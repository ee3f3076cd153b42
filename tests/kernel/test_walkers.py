"""Both ways to bound the stack walker give the same whole stacks."""

from __future__ import annotations

import pytest

from .truth import expect_ledger, expect_no_losses

MAX_FRAMES = 128  # bpf/abi.h
FRAMES_A_PROGRAM = 16  # bpf/walk.h, by tail calls

WALKERS = ("may_goto", "tail_calls")


@pytest.fixture(params=WALKERS)
def walker(request) -> str:
    return request.param


@pytest.mark.parametrize("method", ["session", "multi", "perf"])
def test_each_walker_counts_exactly_by_each_method(daemon, workload, walker, method):
    """A walk that takes several programs ends with the same books."""
    program = workload("every_function", 3)
    tracer = daemon(walker=walker, attach_method=method)
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    expect_no_losses(report)


@pytest.mark.parametrize("depth", [1, FRAMES_A_PROGRAM, 3 * FRAMES_A_PROGRAM, 100])
def test_each_walker_reaches_the_first_function(daemon, workload, walker, depth):
    """Every call is on the stack, without frame pointers, down to _start."""
    program = workload("deep_stack", depth)
    tracer = daemon(walker=walker)
    tracer.attach(program.pid)

    program.step(23)

    (site,) = tracer.top_after_tick(program.pid)["sites"]
    functions = [frame["function"] for frame in site["stack"] if not frame["inlined"]]
    assert functions[0] == "malloc"
    assert functions[1] == "leak_at_the_bottom"
    assert functions[2 : 2 + depth] == ["descend"] * depth
    assert functions[2 + depth] != "descend"
    assert functions[-1] == "_start"
    assert site["truncated"] is None
    assert (site["live_count"], site["live_bytes"]) == (23, 23 * 101)


def test_each_walker_reads_words_that_are_not_aligned(daemon, workload, walker):
    """Code that calls from a crooked stack is passed, and so are those that called it."""
    program = workload("crooked_stack")
    tracer = daemon(walker=walker)
    tracer.attach_with_tables(program.pid)

    program.step(23)

    (site,) = tracer.top_after_tick(program.pid)["sites"]
    functions = [frame["function"] for frame in site["stack"] if not frame["inlined"]]
    assert functions[:5] == ["malloc", "leak_on_a_crooked_stack", "crooked", "call_crooked", "step"]
    assert functions[-1] == "_start"
    assert (site["live_count"], site["live_bytes"]) == (23, 23 * 101)


def test_each_walker_says_that_a_deeper_stack_is_cut(daemon, workload, walker):
    """The innermost frames are kept, and the end is called by its name."""
    program = workload("deep_stack", 500)
    tracer = daemon(walker=walker)
    tracer.attach(program.pid)

    program.step(23)

    (site,) = tracer.top_after_tick(program.pid)["sites"]
    assert len(site["stack"]) == MAX_FRAMES
    assert site["truncated"] == "depth"
    assert site["live_count"] == 23
