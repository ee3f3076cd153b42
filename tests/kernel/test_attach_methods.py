"""Each way that the kernel has to attach gives the same figures, and can be taken back."""

from __future__ import annotations

import pytest

from .daemons import ControlFailed, DaemonFailed
from .kernel_objects import changed_text
from .machine import cannot_run
from .truth import expect_ledger, expect_no_losses

METHODS = ("session", "multi", "perf")


@pytest.fixture(params=METHODS)
def method(request) -> str:
    return request.param


@pytest.fixture
def attached(daemon, workload, method):
    """A factory: a workload attached by `method`; a kernel without it cannot run the test."""

    def start(name: str, *arguments: object):
        program = workload(name, *arguments)
        try:
            tracer = daemon(attach_method=method)
            tracer.attach(program.pid)
        except (DaemonFailed, ControlFailed) as failure:
            if failure.exit_code == 10:  # KernelUnsupported
                cannot_run(f"this kernel has no attach method {method}: {failure}")
            raise
        return tracer, program

    return start


def test_each_method_counts_exactly(attached, method):
    """The truth does not depend on the kind of the links."""
    tracer, program = attached("every_function", 3)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    expect_no_losses(report)
    assert tracer.process(program.pid)["attach_method"] == method


def test_each_method_counts_threads_that_free_each_others_blocks(attached):
    """The race between a return probe and another thread's free is won by every method."""
    tracer, program = attached("cross_thread", 2)

    ledger = program.step(100_000)

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    expect_no_losses(report)


def test_each_method_leaves_the_code_as_it_was(attached):
    """Detach removes every breakpoint from the program's memory."""
    tracer, program = attached("churn")
    program.step(1000)
    assert changed_text(program.pid) != [], "attached, but nothing in the program's code has changed"

    tracer.detach(program.pid)

    assert changed_text(program.pid) == []


def test_each_method_leaves_the_program_at_its_old_speed(attached, workload):
    """After detach, a malloc/free pair costs as much as before."""
    untouched_ns = min(workload("churn").step(300_000)["ns_per_pair"] for _try in range(3))
    tracer, program = attached("churn")
    traced_ns = program.step(30_000)["ns_per_pair"]

    tracer.detach(program.pid)

    after_ns = min(program.step(300_000)["ns_per_pair"] for _try in range(3))
    assert traced_ns > 20 * untouched_ns, "nothing was traced"
    assert after_ns < 3 * untouched_ns


def test_only_the_attached_process_is_touched(attached, workload):
    """A second process with the same libc gets no breakpoint and is not counted."""
    neighbour = workload("every_function", 1)
    tracer, program = attached("churn")

    neighbour.step()
    program.step(1000)

    assert changed_text(neighbour.pid) == []
    assert [row["process"]["pid"] for row in tracer.ps()] == [program.pid]
    report = tracer.top_after_tick(program.pid)
    assert report["process"]["live_count"] == 0
    assert report["process"]["unmatched_frees"] == 0


def test_a_method_that_does_not_exist_is_a_configuration_error(daemon):
    """A misspelled method ends the daemon with exit code 2 and a list of the methods."""
    with pytest.raises(DaemonFailed) as failure:
        daemon(attach_method="sesion")

    assert failure.value.exit_code == 2
    assert "session" in failure.value.log
