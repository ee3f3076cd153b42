"""What tracing a process costs the system calls of others: nothing, at the kernel's functions."""

from __future__ import annotations

import os
import time

import pytest

from bpfleakd.kernel.programs import SyscallMethod

from ..kernel.daemons import Daemon
from ..kernel.kernel_objects import has_pin
from ..kernel.waiting import wait_until

CALLS = 20_000
ROUNDS = 5


def fastest_ns() -> int:
    """The time of a number of system calls: the least of some rounds."""
    rounds = []
    for _round in range(ROUNDS):
        began_ns = time.perf_counter_ns()
        for _call in range(CALLS):
            os.getppid()
        rounds.append(time.perf_counter_ns() - began_ns)
    return min(rounds)


def is_watching(tracer: Daemon) -> bool:
    """Whether the daemon has attached to system calls, and not detached yet."""
    return has_pin(tracer.bpffs_dir, "space_exit", "sys_exit_mmap")


@pytest.mark.parametrize("method", ["auto", "tracepoints"])
def test_other_system_calls_are_as_fast_as_before(daemon, workload, method):
    """Linux 6.14 and later; at tracepoints, each system call of the machine takes another path."""
    tracer, program = daemon(syscall_method=method), workload("churn")
    (loaded,) = tracer.events("kernel.loaded")
    before_ns = fastest_ns()
    tracer.attach(program.pid)
    assert is_watching(tracer)
    during_ns = fastest_ns()
    tracer.detach(program.pid)
    wait_until(lambda: not is_watching(tracer))

    print(f"{loaded['syscalls']}: {during_ns / CALLS:.0f} ns a call, {before_ns / CALLS:.0f} before")
    if loaded["syscalls"] == SyscallMethod.FUNCTIONS:
        assert during_ns < 1.1 * before_ns
    else:
        assert during_ns < 5 * before_ns
