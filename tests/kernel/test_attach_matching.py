"""Attaching to all processes of a name, and a leak test by the exit code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .daemons import ControlFailed
from .waiting import PATIENCE, wait_until
from .workloads import Workload, build


@pytest.fixture
def programs() -> Iterator[Callable[[Path], Workload]]:
    """A factory of programs that leak, from a file; all are killed at the end."""
    running: list[Workload] = []

    def start(file: Path) -> Workload:
        running.append(Workload([file, "leak"]))
        return running[-1]

    yield start
    for program in running:
        program.kill()


@pytest.fixture
def name(tmp_path) -> str:
    """A name that no other program of this machine has, since other tests may run at the same time."""
    own = f"own-{uuid.uuid4().hex[:8]}"
    shutil.copy2(build("growing"), tmp_path / own)
    return own


def test_all_of_a_name_are_traced(tracer, tmp_path, name, programs):
    """And no other."""
    wanted = [programs(tmp_path / name) for _ in range(2)]
    other = programs(build("growing"))
    tracer.control("attach", f"{name[:-1]}?")
    traced = {row["process"]["pid"] for row in tracer.ps() if row["process"]["state"] == "traced"}
    assert traced == {program.pid for program in wanted}
    with pytest.raises(ControlFailed, match=f"no process matches name '{name[:-1]}'") as failed:
        tracer.control("attach", name[:-1], "--wait")
    assert failed.value.exit_code == 6
    assert other.is_alive


def test_the_wait_ends_with_the_process(tracer, tmp_path, name, programs):
    """Too early for a verdict: the result so far is printed nevertheless."""
    program = programs(tmp_path / name)
    command = [sys.executable, "-m", "bpfleakd.cli.bpfleakctl", "--socket", str(tracer.socket)]
    waiting = subprocess.Popen(
        [*command, "attach", name, "--wait", "--for", "10m", "--json"], stdout=subprocess.PIPE
    )
    wait_until(lambda: tracer.process(program.pid))
    program.step(23)
    program.exit()
    output, _ = waiting.communicate(timeout=30 * PATIENCE)
    assert waiting.returncode in (21, 22)
    (report,) = json.loads(output)["reports"]
    assert report["process"]["state"] == "exited"
    assert report["sites"][0]["live_count"] == 23
