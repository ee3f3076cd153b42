"""Call sites that open file descriptors."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from .daemons import Daemon
from .kernel_objects import has_pin
from .truth import expect_no_losses
from .waiting import wait_until
from .workloads import SOURCES, Workload

EACH, FEW = 23, 7
# Standard input, output and error, and a socket that listens.
FROM_BEFORE = 4


def held(tracer: Daemon, pid: int, functions: set[str]) -> Counter[str]:
    """How many descriptors each of the functions holds open, by the stacks; other sites by their own name."""
    held: Counter[str] = Counter()
    for site in tracer.top(pid)["descriptor_sites"]:
        held[function_of(site, functions)] += site["open_count"]
    return held


def function_of(site: dict[str, Any], functions: set[str]) -> str:
    names = [frame["function"] for frame in site["stack"]]
    return next((name for name in names if name in functions), site["function"])


@pytest.mark.long
def test_every_way_to_open_and_to_close(daemon, workload):
    """Each call site has the descriptors that it opened and that are still open, also after a daemon was
    killed.
    """
    tracer = daemon(descriptors={"call_sites": "always"})
    program = workload("opening")
    tracer.attach(program.pid)
    wait_until(lambda: tracer.events("descriptors.recorded"), 10)
    for step in (1, 2, 3):
        notes = program.step(step)
        ours = [name for name in notes if name.startswith(("by_", "over_"))]
        truth = Counter({name: round(notes[name]) for name in ours})
        wait_until(lambda truth=truth: held(tracer, program.pid, {*truth, "come_and_go"}) == truth, 20)
        if step == 1:
            tracer.kill()
            tracer.start()
    report = tracer.top(program.pid)
    expect_no_losses(report)
    assert report["descriptor_totals"]["other_count"] == 0
    expect_the_rest(tracer, program)
    opened = Counter()
    for site in report["descriptor_sites"]:
        opened[function_of(site, {*truth})] += site["opened_count"]
    assert opened["by_socket"] == truth["by_socket"] + FEW


@pytest.mark.long
def test_recording_begins_again_while_links_are_detached(daemon, workload):
    """Detaching them takes seconds, but delays nothing."""
    tracer = daemon(descriptors={"call_sites": "always"})
    program = workload("opening")
    tracer.attach(program.pid)
    wait_until(lambda: tracer.events("descriptors.recorded"), 10)
    tracer.detach(program.pid)
    wait_until(lambda: not has_pin(tracer.bpffs_dir, "sys_exit_socket", "descriptors_exit"), 20)
    tracer.attach(program.pid)
    wait_until(lambda: len(tracer.events("descriptors.recorded")) == 2, 20)
    truth = {name for name in program.step(1) if name.startswith("by_")}
    wait_until(lambda: held(tracer, program.pid, truth)["by_socket"] == EACH, 30)
    totals = tracer.top(program.pid)["descriptor_totals"]
    assert (totals["earlier_count"], totals["other_count"]) == (FROM_BEFORE, 0)


def expect_the_rest(tracer: Daemon, program: Workload) -> None:
    """Descriptors from unrecorded ways have no call site, and complete the sum."""
    unseen = round(program.step(4)["unseen"])
    totals = wait_until(
        lambda: (found := tracer.top(program.pid)["descriptor_totals"])["other_count"] == unseen and found, 20
    )
    are_open = list(Path(f"/proc/{program.pid}/fd").iterdir())
    assert totals["open_count"] == len(are_open)
    assert totals["earlier_count"] == FROM_BEFORE
    assert totals["recorded_count"] + totals["earlier_count"] + unseen == len(are_open)
    assert f"{unseen} came by a way that is not recorded" in tracer.control("top", program.pid, "--once")


def test_a_python_program_that_leaks_sockets(daemon):
    """The function and line that open them; files that it closes again are not there."""
    tracer = daemon(descriptors={"call_sites": "always"})
    program = SOURCES / "runtimes" / "python" / "leaks_sockets.py"
    with subprocess.Popen(
        ["/usr/bin/python3", str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            port = int(process.stdout.readline())
            tracer.attach(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()

            def sites() -> list[dict[str, Any]]:
                found = tracer.top(process.pid)["descriptor_sites"]
                return found if found and found[0]["open_count"] > 10 and found[0]["shares"] else []

            (site, *others) = wait_until(sites, 20)
            assert (site["function"], site["location"]) == ("Client.fetch_order", "leaks_sockets.py:14")
            assert site["shares"][0]["what"] == f"sockets to 127.0.0.1:{port}"
            assert sum(one["open_count"] for one in others) <= 1, "files are closed again"
            functions = [frame["function"] for frame in site["stack"]]
            assert functions[functions.index("Client.fetch_order") :][1:3] == ["main", "<module>"]
            text = tracer.control("top", process.pid, "--once")
            assert "fetch_order" in text.split("open file descriptors: ")[1]
        finally:
            process.kill()
