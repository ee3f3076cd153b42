"""Heap profiles, read by the tools that they are for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from .machine import cannot_run
from .ports import free_port
from .waiting import wait_until


def pprof(*arguments: str | Path) -> str:
    """The output of `go tool pprof`."""
    if shutil.which("go") is None:
        cannot_run("go is not installed: apt install golang-go, or make setup FOR=test")
    done = subprocess.run(
        ["go", "tool", "pprof", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HOME": os.environ.get("HOME", "/root"), "PPROF_NO_BROWSER": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(text: str) -> dict[str, int]:
    """Function → its flat figure, of `pprof -top -unit=…`."""
    found = re.findall(r"^\s*(\d+)(?:B)?\s+\S+%\s+\S+%\s+\S+\s+\S+%\s+(.+)$", text, re.MULTILINE)
    return {name: int(flat) for flat, name in found}


@pytest.fixture
def profile(tracer, workload, tmp_path):
    """A profile of the workload `blocks` after a step of a guilty and an innocent caller; its report too."""
    program = workload("blocks")
    tracer.attach(program.pid)
    program.step(1)
    report = tracer.top_after_tick(program.pid)
    path = tmp_path / "heap.pb.gz"
    tracer.control("export", "--format", "pprof", "--pid", program.pid, "-o", path)
    return path, report, tracer, program


def test_go_tool_pprof_has_every_figure(profile):
    """Bytes and blocks, live and ever allocated, are the report's; the guilty is where the bytes are."""
    path, report, _tracer, program = profile
    for sample_type, field in (
        ("inuse_space", "live_bytes"),
        ("inuse_objects", "live_count"),
        ("alloc_space", "allocated_bytes"),
        ("alloc_objects", "allocated_count"),
    ):
        unit = "B" if sample_type.endswith("space") else "count"
        text = pprof(
            "-top",
            "-nodecount=100000",
            "-nodefraction=0",
            f"-unit={unit}",
            f"-sample_index={sample_type}",
            path,
        )
        assert sum(rows(text).values()) == sum(site[field] for site in report["sites"]), text

    guilty = pprof("-peek", "^guilty$", "-unit=B", path)
    # The frames between the function and the allocator are omitted.
    leaves = rows(pprof("-top", "-nodecount=100000", "-nodefraction=0", "-unit=B", path))
    assert leaves["guilty"] >= 20 << 20
    assert "malloc" not in leaves
    assert f"{20 << 20}B" in guilty
    assert f"pid {program.pid}" in pprof("-comments", path)


def test_go_tool_pprof_has_lines_threads_and_build_ids(profile):
    """Sources, tags and mappings in the tool's output are those of the program."""
    path, _report, _tracer, program = profile
    lines = pprof("-top", "-lines", "-cum", "-nodecount=1000", "-nodefraction=0", path)
    assert f"blocks.c:{program.ledger()['guilty_line']}" in lines
    tags = pprof("-tags", "-unit=B", path)
    assert str(program.pid) in tags  # the thread's tid
    assert "heap" in tags
    raw = pprof("-raw", path)
    notes = subprocess.run(
        ["readelf", "-n", f"/proc/{program.pid}/exe"], capture_output=True, text=True, check=True
    )
    build_id = re.search(r"Build ID: ([0-9a-f]+)", notes.stdout)
    assert build_id is not None
    assert build_id[1] in raw


def test_the_profile_comes_over_http(daemon, workload):
    """As Pyroscope and Parca scrape it, and Go's tool by itself."""
    program = workload("blocks")
    port = free_port()
    tracer = daemon(metrics={"enabled": True, "port": port, "details": True})
    tracer.attach(program.pid)
    program.step(1)
    tracer.top_after_tick(program.pid)
    url = f"http://127.0.0.1:{port}/debug/pprof/heap?pid={program.pid}"

    assert "guilty" in pprof("-top", "-cum", url)
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers["content-type"] == "application/octet-stream"


def test_a_process_that_ended_has_its_last_profile(profile, tmp_path):
    """With all the figures, names and mappings that it had."""
    _path, report, tracer, program = profile
    program.exit()
    wait_until(lambda: tracer.process(program.pid)["process"]["state"] == "exited")
    last = tmp_path / "last.pb.gz"
    tracer.control("export", "--format", "pprof", "--pid", program.pid, "-o", last)
    text = pprof("-top", "-unit=B", "-nodefraction=0", last)
    assert sum(rows(text).values()) == sum(site["live_bytes"] for site in report["sites"])
    assert "libc" in pprof("-raw", last)


def test_speedscope_and_collapsed_stacks_add_up(profile):
    """To the same bytes as the report."""
    _path, report, tracer, program = profile
    live_bytes = sum(site["live_bytes"] for site in report["sites"])
    collapsed = tracer.control("export", "--format", "collapsed", "--pid", program.pid)
    assert sum(int(line.rpartition(" ")[2]) for line in collapsed.splitlines()) == live_bytes
    assert any(";guilty;checked_malloc;" in line for line in collapsed.splitlines())
    document = json.loads(tracer.control("export", "--format", "speedscope", "--pid", program.pid))
    assert document["profiles"][0]["endValue"] == live_bytes
