"""Processes of one allocator's file share probes: with the same figures, and nothing is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpfleakd.kernel.probes.shared import group_of

from .kernel_objects import changed_text
from .truth import expect_ledger, expect_no_losses
from .waiting import wait_until

TRACEFS = Path("/sys/kernel/tracing")


def tracing_events(tracer) -> list[str]:
    """The tracing events of a daemon: those of the files that processes share."""
    group = group_of(tracer.bpffs_dir)
    defined = (TRACEFS / "uprobe_events").read_text().splitlines()
    return [line for line in defined if line[2:].startswith(f"{group}/")]


def expect_sampler_events(tracer, *, are_shared: bool) -> None:
    """Those of static probes, with their semaphores; none if processes do not share them."""
    events = [event for event in tracing_events(tracer) if re.search(r"_s[0-9a-f]+ ", event)]
    if are_shared:
        assert len(events) >= 2
        assert all(re.search(r":0x[0-9a-f]+\(0x[0-9a-f]+\)", event) for event in events)
    else:
        assert events == []


@pytest.fixture(params=["session", "multi", "perf"])
def tracer(request, daemon):
    return daemon(attach_method=request.param)


def test_processes_that_share_probes_are_counted_apart_and_exactly(tracer, workload):
    """The first process has its own links, the others share. Each has its own exact counts; a bystander is
    not touched.
    """
    bystander = workload("every_function", 1)
    programs = [workload("every_function", threads) for threads in (1, 2, 3)]
    for program in programs:
        tracer.attach(program.pid)
    assert tracing_events(tracer) != []

    ledgers = [program.step() for program in programs]
    bystander.step()

    assert changed_text(bystander.pid) == []
    for program, ledger in zip(programs, ledgers, strict=True):
        report = tracer.top_after_tick(program.pid)
        expect_ledger(report, ledger)
        expect_no_losses(report)

    tracer.detach(programs[1].pid)
    wait_until(lambda: changed_text(programs[1].pid) == [])
    ledger = programs[2].step()
    expect_ledger(tracer.top_after_tick(programs[2].pid), ledger)

    tracer.detach(programs[2].pid)
    wait_until(lambda: changed_text(programs[2].pid) == [])
    wait_until(lambda: tracing_events(tracer) == [])
    assert changed_text(programs[0].pid) != [], "the first is traced no more"


def test_several_processes_with_a_sampler_inside(tracer, workload):
    """Each has its own exact counts and its own semaphores; a bystander announces nothing. Only perf events
    are shared.
    """
    bystander = workload("announcing")
    programs = [workload("announcing") for _ in range(3)]
    for program in programs:
        tracer.attach(program.pid)
    expect_sampler_events(tracer, are_shared=tracer.configuration["attach_method"] == "perf")

    ledgers = [program.step(100 * number) for number, program in enumerate(programs, 1)]

    assert bystander.step(100)["live_count"] == 0
    assert changed_text(bystander.pid) == []
    for program, ledger in zip(programs, ledgers, strict=True):
        assert ledger["live_count"]
        report = tracer.top_after_tick(program.pid)
        expect_ledger(report, ledger)
        expect_no_losses(report)

    tracer.detach(programs[1].pid)
    wait_until(lambda: changed_text(programs[1].pid) == [])
    assert programs[1].step(100)["live_count"] == ledgers[1]["live_count"]
    ledger = programs[2].step(100)
    expect_ledger(tracer.top_after_tick(programs[2].pid), ledger)


@pytest.mark.long
def test_the_next_daemon_takes_over_shared_probes(daemon, workload):
    """Their counts without a daemon are complete, and detach removes them like its own."""
    programs = [workload("every_function", 1) for _ in range(3)]
    tracer = daemon()
    for program in programs:
        tracer.attach(program.pid)
    tracer.kill()
    ledgers = [program.step() for program in programs]

    tracer.start()

    for program, ledger in zip(programs, ledgers, strict=True):
        expect_ledger(tracer.top_after_tick(program.pid), ledger)
    for program in programs:
        tracer.detach(program.pid)
    wait_until(lambda: tracing_events(tracer) == [])
    assert [changed_text(program.pid) for program in programs] == [[], [], []]


@pytest.mark.parametrize("method", ["session", "perf"])
def test_the_next_daemon_takes_over_the_probes_of_several_samplers(daemon, workload, method):
    """Each process is counted exactly before, without and after a daemon; a detach changes nothing for the
    others, and the last one leaves nothing.
    """
    programs = [workload("announcing") for _ in range(3)]
    tracer = daemon(attach_method=method)
    for program in programs:
        tracer.attach(program.pid)
    before = [program.step(100 * number)["live_count"] for number, program in enumerate(programs, 1)]
    tracer.kill()
    without = [program.step(100 * number)["live_count"] for number, program in enumerate(programs, 1)]
    assert without == [2 * count for count in before], "nothing was announced without a daemon"

    tracer.start()

    def expect_all(traced) -> None:
        ledgers = [program.step(50) for program in traced]
        for program, ledger in zip(traced, ledgers, strict=True):
            report = tracer.top_after_tick(program.pid)
            assert report["process"]["mode"] == "inside"
            expect_ledger(report, ledger)
            expect_no_losses(report)

    expect_all(programs)
    assert [tracer.process(program.pid)["adopted_count"] for program in programs] == [1, 1, 1]
    expect_sampler_events(tracer, are_shared=method == "perf")

    # The first process always has its own links. The second one shares probes, if they are perf events.
    for leaving in (programs[1], programs[0]):
        programs.remove(leaving)
        tracer.detach(leaving.pid)
        wait_until(lambda pid=leaving.pid: changed_text(pid) == [])
        announced = leaving.step(0)["live_count"]
        assert leaving.step(100)["live_count"] == announced, "its semaphore is still up"
        expect_all(programs)

    tracer.detach(programs[0].pid)
    wait_until(lambda: changed_text(programs[0].pid) == [])
    wait_until(lambda: tracing_events(tracer) == [])
