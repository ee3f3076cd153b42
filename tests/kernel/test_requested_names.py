"""Names that a JVM writes on request: one with an unknown structure, and one that needs no request."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .daemons import ControlFailed, Daemon
from .java import java_agent, java_program
from .waiting import PATIENCE, wait_until

# The program's own methods are compiled at their first call, with frame pointers.
OWN = "-XX:CompileCommand=compileonly,JavaLeaks*::*"
COMPILED = ("-Xmx64m", "-Xcomp", "-XX:-Inline", "-XX:CompileCommand=quiet", OWN, "-XX:+PreserveFramePointer")


def names(tracer: Daemon, pid: int, *options: str) -> dict[str, Any]:
    return json.loads(tracer.control("names", pid, *options, "--json"))


def test_one_of_unknown_structure(tracer: Daemon, service: Callable[..., subprocess.Popen]) -> None:
    """Compiled frames get names; the file is removed, and no other file is touched."""
    options = (*COMPILED, java_agent("libjavahides.so"))
    pid = service(*java_program("JavaLeaks", options=options), "direct").pid
    tracer.attach(pid)
    perf_map = Path(f"/tmp/perf-{pid}.map")

    def lacking() -> dict[str, Any] | None:
        report = names(tracer, pid)
        return report if any(one["module"] is None for one in report["unnamed"]) else None

    before = wait_until(lacking, 60 * PATIENCE)
    assert any("CodeBlob" in note for note in before["notes"])
    assert before["requested"] is None

    perf_map.symlink_to("/dev/null")
    try:
        with pytest.raises(ControlFailed, match="there is a file /tmp/perf-"):
            names(tracer, pid, "--attach")
        assert perf_map.is_symlink()
    finally:
        perf_map.unlink()

    asked = names(tracer, pid, "--attach")
    assert asked["requested"]["newly_named"] > 0
    assert asked["requested"]["command"] == "Compiler.perfmap"
    assert not perf_map.exists()
    assert not Path(f"/tmp/.attach_pid{pid}").exists()
    stacks = [frame["function"] or "" for site in tracer.top(pid)["sites"] for frame in site["stack"]]
    assert any("JavaLeaks$Buffers.take" in function for function in stacks)


def test_one_that_is_known(tracer: Daemon, service: Callable[..., subprocess.Popen]) -> None:
    """All frames of Java have names without asking, and the answer says that asking brought nothing."""
    pid = service(*java_program("JavaLeaks", options=COMPILED), "direct").pid
    tracer.attach(pid)
    wait_until(lambda: names(tracer, pid)["frames"] > 0, 60 * PATIENCE)

    report = names(tracer, pid, "--attach")

    assert report["runtimes"][0].startswith("JVM ")
    assert report["requested"]["newly_named"] == 0
    assert "no frame got its name that way" in tracer.control("names", pid, "--attach")
    assert not Path(f"/tmp/perf-{pid}.map").exists()
