"""Unprepared CPython: functions and lines in every stack, as the program itself sees them.

Debian's interpreter, and every other one that is installed: builds differ in where they keep frames.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .daemons import Daemon
from .waiting import wait_until
from .workloads import SOURCES

PROGRAMS = SOURCES / "runtimes" / "python"
BLOCKS = 300
SYSTEM = "/usr/bin/python3"
# Where pyenv and python.org's images put theirs.
OTHERS = sorted(Path("/root/.pyenv/versions").glob("3.*/bin/python3"), key=str)
SUPPORTED = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
INTERPRETERS = [SYSTEM, *(str(path) for path in OTHERS if path.parts[-3].startswith(SUPPORTED))]

# What this program frees while it runs: code that exec compiles has lost its name when it is shown.
UNNAMED_SHARE = 0.15


@dataclass
class Paths:
    """paths.py, running: it allocates when it is told, and then says what it did."""

    process: subprocess.Popen[str]
    ledger: dict[int, list[list[Any]]] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        return self._pid

    def ready(self) -> Paths:
        self._pid = int(self._line())
        return self

    def allocate(self) -> None:
        self._go_on()
        while (line := self._line()) != "end":
            size_bytes, frames = json.loads(line)
            # A bytearray ends with a NUL.
            self.ledger[size_bytes + 1] = frames

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the program has ended"
        return line.strip()

    def _go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@pytest.fixture
def run() -> Iterator[Callable[..., Paths]]:
    """A factory of running programs, which end with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str | Path) -> Paths:
        started.append(
            subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        return Paths(started[-1]).ready()

    yield start
    for process in started:
        process.kill()
        # Closes the pipes, and waits.
        process.communicate()


def paths(run: Callable[..., Paths], *prefix: str, count: int = BLOCKS, seed: int = 1) -> Paths:
    return run(*prefix, PROGRAMS / "paths.py", count, seed)


@dataclass
class Compared:
    """How the stacks of blocks compare with what the program says of them."""

    equal: int = 0
    incomplete: int = 0
    wrong: list[tuple[list[Any], list[Any]]] = field(default_factory=list)
    missing: int = 0


def compared(tracer: Daemon, program: Paths) -> Compared:
    """Of every block in the ledger, the Python frames of its stack."""
    stacks = {}
    for site in tracer.blocks(program.pid, "--limit", 100_000)["sites"]:
        for block in site["blocks"]:
            stacks[block["size_bytes"]] = site["stack"]
    result = Compared()
    for size_bytes, expected in program.ledger.items():
        if size_bytes not in stacks:
            result.missing += 1
            continue
        frames = [frame for frame in stacks[size_bytes] if frame["kind"] == "interpreted"]
        found = [[frame["function"], line_of(frame)] for frame in frames]
        if found == expected:
            result.equal += 1
        elif is_part_of(found, expected):
            result.incomplete += 1
        else:
            result.wrong.append((expected, found))
    return result


def line_of(frame: dict[str, Any]) -> int | None:
    return int(frame["location"].rpartition(":")[2]) if frame["location"] else None


def is_part_of(found: list[Any], expected: list[Any]) -> bool:
    """Whether every frame that has a name is one that is expected, in this order."""
    rest = iter(expected)
    return all(frame in rest for frame in found if frame[0] is not None)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_frames_are_the_programs_own(daemon, run, interpreter: str) -> None:
    """Function and line of every frame, through generators, callbacks of C, classes, threads and tasks."""
    program = paths(run, interpreter)
    tracer = daemon()
    tracer.attach(program.pid)
    program.allocate()
    result = compared(tracer, program)
    assert result.wrong == []
    assert result.missing == 0
    assert result.equal >= (1 - UNNAMED_SHARE) * BLOCKS
    assert result.incomplete == BLOCKS - result.equal


@pytest.mark.parametrize("walker", ["may_goto", "tail_calls"])
def test_both_walkers_pass_python_frames(daemon, run, walker: str) -> None:
    """The older one in several programs."""
    program = paths(run, SYSTEM, count=100, seed=2)
    tracer = daemon(walker=walker)
    tracer.attach(program.pid)
    program.allocate()
    result = compared(tracer, program)
    assert (result.wrong, result.missing) == ([], 0)
    assert result.equal >= (1 - UNNAMED_SHARE) * 100


def test_in_a_pid_namespace(daemon, run) -> None:
    """Python knows its threads by the numbers of the container."""
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", SYSTEM)
    program = paths(run, *command, count=50, seed=3)
    tracer = daemon()
    inside = only_child_of(program.process.pid)
    program._pid = inside
    tracer.attach(inside)
    program.allocate()
    result = compared(tracer, program)
    assert (result.wrong, result.missing) == ([], 0)
    assert result.equal >= (1 - UNNAMED_SHARE) * 50


def only_child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_names_outlive_daemon_and_process(daemon, run) -> None:
    """The next daemon reads them again, and keeps those of a process that ends."""
    program = paths(run, SYSTEM, count=50, seed=4)
    tracer = daemon()
    tracer.attach(program.pid)
    program.allocate()
    before = compared(tracer, program)
    tracer.kill()
    tracer.start()
    after = compared(tracer, program)
    assert (after.wrong, after.missing) == ([], 0)
    assert after.equal == before.equal
    program.process.kill()
    wait_until(lambda: tracer.process(program.pid)["process"]["state"] == "exited")
    functions = {
        frame["function"]
        for site in tracer.top(program.pid)["sites"]
        for frame in site["stack"]
        if frame["kind"] == "interpreted"
    }
    assert {"allocate", "step", "main"} <= functions


def test_the_leaking_function_is_named(daemon) -> None:
    """A list that grows is charged to the function that appends, with its line; attached while it runs."""
    source = (
        "import time\nlog = []\n\ndef log_order(n):\n    log.append(bytes(5000))\n\n"
        "while True:\n    log_order(1)\n    time.sleep(0.002)\n"
    )
    process = subprocess.Popen([SYSTEM, "-c", source])
    try:
        tracer = daemon()
        tracer.attach(process.pid)
        wait_until(lambda: tracer.top(process.pid)["process"]["live_bytes"] > 500_000, 30)
        site = max(tracer.top(process.pid)["sites"], key=lambda site: site["live_bytes"])
        assert site["function"] == "log_order"
        assert site["location"] == "<string>:5"
        tracer.detach(process.pid)
        os.kill(process.pid, 0)
    finally:
        process.kill()
        process.wait()


ARENA_BYTES = {"3.9": 256 << 10}


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_arenas_are_the_growth_of_the_object_heap(daemon, interpreter: str) -> None:
    """As many as Python itself says, by the function that used up the one before; freed ones are gone."""
    process = subprocess.Popen(
        [interpreter, str(PROGRAMS / "arenas.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdin
        assert process.stdout

        def arenas(line: str = "") -> int:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        pid = int(process.stdout.readline())
        before = arenas()
        tracer = daemon()
        tracer.attach(pid)
        version = tracer.top(pid)["process"]["exe"].rpartition("python")[2]
        arena_bytes = ARENA_BYTES.get(version, 1 << 20)
        grown = arenas("remember 60000") - before
        assert grown > 5
        assert python_sites(tracer, pid) == {"remember": grown * arena_bytes}
        shrunk = arenas("forget 50000") - before
        assert shrunk < grown
        assert python_sites(tracer, pid) == {"remember": shrunk * arena_bytes}
    finally:
        process.kill()
        process.communicate()


def python_sites(tracer: Daemon, pid: int) -> dict[str, int]:
    """What is live in arenas, by function."""
    found: dict[str, int] = {}
    for site in tracer.top(pid)["sites"]:
        if site["kind"] == "python":
            found[site["function"]] = found.get(site["function"], 0) + site["live_bytes"]
    return found


@pytest.fixture
def service() -> Iterator[Callable[[str], int]]:
    """A factory of running services of services.py, by what they keep; returns their pids."""
    started: list[subprocess.Popen[str]] = []

    def start(what: str) -> int:
        command = [SYSTEM, str(PROGRAMS / "services.py"), what]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout
        return int(started[-1].stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.communicate()


LEAKS = {
    "log_order": ("dict", "list"),
    "remember_session": ("__main__.Order", "dict"),
    "note_seen": ("str", "set"),
    "queue_event": ("tuple", "deque"),
    "add_handler": ("function", "list"),
}


def test_who_makes_a_structure_grow_is_named_with_its_type(daemon, service) -> None:
    """Not who makes the garbage, nor who used up the last arena; by list, dict, set and deque."""
    tracer = daemon(history={"leak_after_s": 20})
    pids = {what: service(what) for what in LEAKS}
    for pid in pids.values():
        tracer.attach(pid)
    for what, (value, kind) in LEAKS.items():

        def worst(pid: int = pids[what]) -> dict[str, Any]:
            return tracer.top(pid)["sites"][0]

        # Who fills a table is known once it was enlarged, as long again each time. Its blocks over
        # 512 bytes are a site of their own, which may be the first to be called a leak.
        wait_until(lambda f=what: (worst()["verdict"], worst()["function"]) == ("leak", f), 200)
        site = worst()
        if site["kind"] != "managed":
            continue
        assert site["location"].startswith("services.py:")
        assert site["type"].split(" +")[0] == value
        assert site["reason"].startswith(f"a {kind} of ")
        heap = tracer.top(pids[what])["managed"]
        assert (heap["runtime"], heap["verdict"], heap["is_read"]) == ("CPython", "leak", True)


def test_a_healthy_service_is_no_leak(daemon, service) -> None:
    """A cache that is full, a queue that is emptied, an asyncio server under load."""
    tracer = daemon(history={"leak_after_s": 20})
    pids = [service(what) for what in ("cache_page", "churn", "server")]
    for pid in pids:
        tracer.attach(pid)
    for pid in pids:

        def managed(pid: int = pid) -> dict[str, Any]:
            return tracer.top(pid)["managed"] or {}

        wait_until(lambda: managed().get("verdict") == "steady", 300)
        leaks = [site for site in tracer.top(pid)["sites"] if site["verdict"] == "leak"]
        assert leaks == []


def test_types_by_the_command(daemon, service) -> None:
    """Without a question, since the process hardly stands still; and while it runs, where that is wanted."""
    pid = service("log_order")
    tracer = daemon()
    tracer.attach(pid)
    for arguments in ((), ("--no-stop",)):
        report = json.loads(tracer.control("types", "--pid", pid, "--json", *arguments))
        assert report["runtime"] == "CPython"
        types = {row["type"]: row for row in report["types"]}
        assert types["dict"]["live_count"] > 0
        assert types["str"]["live_count"] > types["code"]["live_count"] > 100
    assert types["dict"]["change_count"] > 0


def test_a_program_that_is_attached_to_from_its_start(daemon) -> None:
    """Before Python has begun: it is looked for again."""
    rule = {"match": {"cmdline": "*from_its_start*"}, "mode": "exact"}
    tracer = daemon(policy={"default": "off", "rules": [rule]})
    source = "import time\ndef from_its_start():\n    return bytearray(70000)\n"
    source += "kept = []\nwhile True:\n    kept.append(from_its_start())\n    time.sleep(0.05)\n"
    process = subprocess.Popen([SYSTEM, "-c", source])
    try:
        wait_until(lambda: tracer.process(process.pid) is not None, 60)

        def functions() -> set[str]:
            return {site["function"] for site in tracer.top(process.pid)["sites"]}

        wait_until(lambda: "from_its_start" in functions(), 60)
    finally:
        process.kill()
        process.wait()
