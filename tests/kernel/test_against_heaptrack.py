"""The same workloads under heaptrack and valgrind: another's count of the leaks agrees with ours."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from .machine import need_tool
from .truth import by_function, short_name
from .workloads import build

OTHER_WORKLOADS = [("exec_fork", "thread"), ("cxx",)]

# valgrind stops a program at pvalloc and does not know reallocarray.
FOR_VALGRIND = [("every_function", "2", "pvalloc,reallocarray"), *OTHER_WORKLOADS]

# heaptrack does not hook these two, nor memalign, and treats realloc(p, 0) as a failed call.
FOR_HEAPTRACK = [
    ("every_function", "2", "pvalloc,reallocarray,memalign,realloc_to_nothing"),
    *OTHER_WORKLOADS,
]


def _run_under(command: list[str | Path], directory: Path) -> dict:
    """Run a workload for one step under another program; return its ledger."""
    done = subprocess.run(
        command,
        input="run\nexit\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=directory,
    )
    ledgers = [line for line in done.stdout.splitlines() if line.startswith('{"live_bytes"')]
    assert ledgers, f"{command} printed no ledger:\n{done.stdout}{done.stderr}"
    return json.loads(ledgers[0])


def _blamed_among(functions: list[str], sites: set[str]) -> str | None:
    """The innermost function of a stack (innermost first) that is one of the workload's sites.

    heaptrack writes "function() (file)", and of some functions only the last part of the name.
    """
    last_parts = {site.rpartition("::")[2]: site for site in sites}
    for function in functions:
        name = short_name(re.sub(r" \([^()]*\)$", "", function))
        if name in sites or name in last_parts:
            return last_parts.get(name, name)
    return None


@pytest.mark.parametrize("command", FOR_VALGRIND, ids=lambda command: command[0])
def test_valgrind_finds_the_same_bytes_and_blocks(daemon, workload, tmp_path, command):
    """For each function, valgrind's leaks at exit equal the live bytes and blocks here."""
    # given the leaks as valgrind sees them
    name, *arguments = command
    xml = tmp_path / "leaks.xml"
    ledger = _run_under(
        [
            need_tool("valgrind"),
            "--leak-check=full",
            "--show-leak-kinds=all",
            "--num-callers=30",
            "--read-inline-info=yes",
            "--xml=yes",
            f"--xml-file={xml}",
            build(name),
            *arguments,
        ],
        tmp_path,
    )
    sites = set(ledger["sites"])
    leaked_bytes: Counter[str] = Counter()
    leaked_blocks: Counter[str] = Counter()
    for leak in ElementTree.parse(xml).iterfind("error[xwhat]"):
        function = _blamed_among(
            [frame.findtext("fn", "") for frame in leak.iterfind("stack[1]/frame")], sites
        )
        if function:
            leaked_bytes[function] += int(leak.findtext("xwhat/leakedbytes"))
            leaked_blocks[function] += int(leak.findtext("xwhat/leakedblocks"))

    # when the same runs under us
    program = workload(name, *arguments)
    tracer = daemon()
    tracer.attach(program.pid)
    program.step()

    # then both agree
    live = by_function(tracer.top_after_tick(program.pid))
    assert {f: sums["live_count"] for f, sums in live.items() if sums["live_count"]} == leaked_blocks
    assert {f: sums["live_bytes"] for f, sums in live.items() if sums["live_bytes"]} == {
        f: count for f, count in leaked_bytes.items() if count
    }


@pytest.mark.parametrize("command", FOR_HEAPTRACK, ids=lambda command: command[0])
def test_heaptrack_finds_the_same_bytes(daemon, workload, tmp_path, command):
    """For each function, heaptrack's leaked bytes equal the live bytes here."""
    # given the leaks as heaptrack sees them, as one line a stack: "outer;…;inner BYTES"
    name, *arguments = command
    ledger = _run_under([need_tool("heaptrack"), "-o", tmp_path / "trace", build(name), *arguments], tmp_path)
    sites = set(ledger["sites"])
    trace = next(tmp_path.glob("trace.*"))
    stacks = tmp_path / "leaks.txt"
    subprocess.run(
        [need_tool("heaptrack_print"), "--flamegraph-cost-type", "leaked", "-F", stacks, trace],
        capture_output=True,
        check=True,
        timeout=120,
    )
    leaked_bytes: Counter[str] = Counter()
    for line in stacks.read_text().splitlines():
        frames, _space, leaked = line.rpartition(" ")
        function = _blamed_among(frames.split(";")[::-1], sites)
        if function and int(leaked):
            leaked_bytes[function] += int(leaked)

    # when the same runs under us
    program = workload(name, *arguments)
    tracer = daemon()
    tracer.attach(program.pid)
    program.step()

    # then both agree
    live = by_function(tracer.top_after_tick(program.pid))
    assert {f: sums["live_bytes"] for f, sums in live.items() if sums["live_bytes"]} == leaked_bytes
