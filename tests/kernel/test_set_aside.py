"""An error with one traced process does not affect the others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .building import build_directory
from .truth import by_function, expect_ledger
from .waiting import wait_until
from .workloads import Workload


@contextmanager
def unreadable_mappings(pid: int) -> Iterator[None]:
    """Reading the mappings of a process raises an I/O error."""
    subprocess.run(["mount", "--bind", f"/proc/{pid}/mem", f"/proc/{pid}/maps"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", f"/proc/{pid}/maps"], check=True)


@pytest.fixture
def program(tmp_path) -> Iterator[Workload]:
    """A program that loads a library at its first step, and leaks through it at the next."""
    directory = build_directory("runtimes", "libcatalog.so", "opens_late")
    program = Workload((directory / "opens_late", directory / "libcatalog.so"), cwd=tmp_path)
    yield program
    program.kill()


def test_a_process_whose_mappings_cannot_be_read_for_a_while(daemon, workload, program):
    """It is set aside with the reason and tried again; everybody else is traced on."""
    other = workload("many_sites", 23)
    tracer = daemon()
    for process in (program, other):
        tracer.attach(process.pid)

    with unreadable_mappings(program.pid):
        program.step()  # it loads a library, so its mappings must be read
        wait_until(lambda: tracer.process(program.pid)["set_aside"])
        assert "Input/output error" in tracer.process(program.pid)["set_aside"]
        ledger = other.step()
        expect_ledger(tracer.top_after_tick(other.pid), ledger)
        assert tracer.process(other.pid)["set_aside"] == ""
        tracer.attach(workload("many_sites", 7).pid)

    wait_until(lambda: not tracer.process(program.pid)["set_aside"], 30)
    program.step()
    live = by_function(tracer.top_after_tick(program.pid))
    assert live["catalog::reserve"]["live_count"] == 23
    assert tracer.log.count("process.set-aside") >= 1
    # Its log has a traceback, which the end of a test would not pass over.
    tracer.kill()
    assert tracer.clean_up().returncode == 0
