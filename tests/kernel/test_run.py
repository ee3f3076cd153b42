"""`bpfleakctl run -- COMMAND`: a program that samples itself, started and traced."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .inside_library import library
from .test_allocators import allocator_program
from .truth import expect_no_losses
from .waiting import wait_until
from .workloads import Workload, build

INTERVAL_BYTES = 4096
# The error that an estimate seldom exceeds, in standard errors.
FAR = 6.0


@pytest.fixture
def run(daemon, monkeypatch):
    """A daemon, and the command line that runs another one under `bpfleakctl run`."""
    library()  # built where `run` looks for it
    tracer = daemon()
    ctl = [sys.executable, "-m", "bpfleakd.cli.bpfleakctl", "--socket", str(tracer.socket)]

    def command(*words: object) -> list[str]:
        return [*ctl, "run", "--sample-interval", str(INTERVAL_BYTES), "--", *map(str, words)]

    return tracer, command


def child_of(pid: int) -> int:
    """The only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_the_program_is_traced_from_inside_and_talks_as_ever(run):
    """Its pipes are untouched, its figures are estimates with errors, and it exits as without bpfleakd."""
    tracer, command = run
    program = Workload(command(build("many_sites"), 7))
    try:
        pid = child_of(program.pid)
        wait_until(lambda: [row["process"]["mode"] for row in tracer.ps() if row["process"]["pid"] == pid])

        ledger = program.step(7 * 2_300)

        report = tracer.top_after_tick(pid)
        assert report["process"]["mode"] == "inside"
        expect_no_losses(report)
        for figure in ("live_bytes", "live_count"):
            error = report["process"][f"{figure}_stderr"]
            assert error > 0
            assert abs(report["process"][figure] - ledger[figure]) <= FAR * error
        program.exit()
    finally:
        program.kill()


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [("echo out; echo error >&2; exit 23", 23), ("kill -TERM $$", 128 + signal.SIGTERM)],
)
def test_output_and_exit_code_are_those_of_the_command(run, script, exit_code):
    """Also when a signal has ended it."""
    _tracer, command = run

    done = subprocess.run(command("sh", "-c", script), capture_output=True, text=True, check=False)

    assert done.returncode == exit_code
    if exit_code == 23:
        assert (done.stdout, done.stderr) == ("out\n", "error\n")


def test_a_static_program_is_sampled_from_outside(run):
    """The library cannot be preloaded; this is reported once, and the program is traced nevertheless."""
    tracer, command = run
    program = Workload(command(allocator_program("every_function_static"), 1))
    try:
        pid = child_of(program.pid)
        wait_until(lambda: [row for row in tracer.ps() if row["process"]["pid"] == pid])
        assert tracer.process(pid)["process"]["mode"] == "sampled"
        program.exit()
        assert "is it linked statically?" in program.errors()
    finally:
        program.kill()


@pytest.mark.parametrize(("command_line", "exit_code"), [("/nowhere/program", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_be_started(run, command_line, exit_code):
    """As a shell says it."""
    _tracer, command = run

    done = subprocess.run(command(command_line), capture_output=True, text=True, check=False)

    assert done.returncode == exit_code
    assert done.stderr.startswith(f"bpfleakctl: {command_line}: ")


def test_without_a_daemon_nothing_is_started(run, tmp_path):
    """The command has not begun when the error is shown."""
    tracer, command = run
    tracer.stop()

    done = subprocess.run(command("touch", tmp_path / "begun"), capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "bpfleakd" in done.stderr
    assert not (tmp_path / "begun").exists()
