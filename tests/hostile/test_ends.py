"""Large traced processes that all end at the same moment."""

from __future__ import annotations

from collections.abc import Callable

from ..kernel.daemons import Daemon
from ..kernel.waiting import wait_until
from ..kernel.workloads import Workload
from .bystander import Bystander

PROCESSES = 8
STACKS = 5_000


def state_of(tracer: Daemon, pid: int) -> str:
    row = tracer.process(pid)
    return row["process"]["state"] if row else ""


def test_large_processes_that_end_together_stall_nobody(
    tracer: Daemon, bystander: Bystander, workload: Callable[..., Workload]
) -> None:
    """Each gets its last report and its last blocks, and others get their answers meanwhile."""
    programs = [workload("many_sites", STACKS, 2 * STACKS, 40) for _ in range(PROCESSES)]
    for program in programs:
        tracer.attach(program.pid)
    for program in programs:
        program.step(4 * STACKS)
    for program in programs:
        tracer.top_after_tick(program.pid)

    with bystander.during_attack():
        for program in programs:
            program.kill()
        wait_until(lambda: all(state_of(tracer, program.pid) == "exited" for program in programs), 60)

    for program in programs:
        assert tracer.top(program.pid)["process"]["live_count"] == 4 * STACKS
        assert tracer.blocks(program.pid)["live_count"] == 4 * STACKS
