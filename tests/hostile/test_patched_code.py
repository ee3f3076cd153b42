"""Programs that have changed their own code: they go on as they were, attached to or refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..kernel.daemons import ControlFailed, Daemon
from ..kernel.machine import need_tool


@pytest.fixture
def patched(public_directory: Path) -> Path:
    """The program."""
    need_tool("gcc")
    program = public_directory / "patched"
    source = Path(__file__).with_name("patched.c")
    subprocess.run(["gcc", "-O1", "-fno-builtin", "-o", program, source], check=True, timeout=60)
    return program


@pytest.fixture
def running(patched: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([patched], stdout=subprocess.PIPE, bufsize=0) as process:
        yield process
        process.kill()


def test_code_that_a_hook_has_replaced_is_not_probed(
    running: subprocess.Popen[bytes], tracer: Daemon
) -> None:
    """A breakpoint there executes the file's instruction, and goes on in the middle of the hook's."""
    output = running.stdout
    assert output is not None
    assert output.readline() == b"right\n"
    with pytest.raises(ControlFailed, match="changed in memory"):
        tracer.attach(running.pid)
    # More than the pipe holds from before.
    for _ in range(100):
        assert output.readline() == b"right\n"
