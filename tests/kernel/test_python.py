"""Unprepared CPython: functions and lines in every stack, as the program itself sees them.

Debian's interpreter, and every other one that is installed: builds differ in where they keep frames.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import read_process
from bpfleakd.runtimes.cpython.runtime import detect_cpython

from .daemons import Daemon
from .python_paths import INTERPRETERS, PROGRAMS, SYSTEM, Paths, compared, running
from .waiting import wait_until

BLOCKS = 300
# Freed while the program runs: code compiled by exec has lost its name when it is shown.
UNNAMED_SHARE = 0.15


@pytest.fixture
def run() -> Iterator[Callable[..., Paths]]:
    """A factory of running programs, which end with the test."""
    with ExitStack() as programs:
        yield lambda *command: programs.enter_context(running(*command))


def paths(run: Callable[..., Paths], *prefix: str, count: int = BLOCKS, seed: int = 1) -> Paths:
    return run(*prefix, PROGRAMS / "paths.py", count, seed)


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_frames_are_the_programs_own(daemon, run, interpreter: str) -> None:
    """Function and line of every frame, through generators, callbacks of C, classes, threads and tasks."""
    program = paths(run, interpreter)
    tracer = daemon()
    tracer.attach_with_tables(program.pid)
    program.allocate()
    result = compared(tracer, program)
    assert result.wrong == []
    assert result.missing == 0
    assert result.equal >= (1 - UNNAMED_SHARE) * BLOCKS
    assert result.incomplete == BLOCKS - result.equal


def test_code_at_the_address_of_released_code(daemon, run) -> None:
    """The walker remembers code objects, until one is released: a block has the later function's name."""
    tracer = daemon()
    for interpreter in INTERPRETERS:
        program = run(interpreter, PROGRAMS / "reused.py")
        tracer.attach_with_tables(program.pid)
        program.allocate()
        assert compared(tracer, program).equal == 20
        program.allocate()
        # Not a block: a size of 0.
        is_reused = program.ledger.pop(1)
        assert is_reused, f"{interpreter}: no later code object was at the same address"
        result = compared(tracer, program)
        assert (result.wrong, result.missing, result.equal) == ([], 0, 21)


@pytest.mark.parametrize("walker", ["may_goto", "tail_calls"])
def test_both_walkers_pass_python_frames(daemon, run, walker: str) -> None:
    """The older one in several programs."""
    program = paths(run, SYSTEM, count=100, seed=2)
    tracer = daemon(walker=walker)
    tracer.attach_with_tables(program.pid)
    program.allocate()
    result = compared(tracer, program)
    assert (result.wrong, result.missing) == ([], 0)
    assert result.equal >= (1 - UNNAMED_SHARE) * 100


def test_in_a_pid_namespace(daemon, run) -> None:
    """Python identifies its threads by the container's numbers."""
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", SYSTEM)
    program = paths(run, *command, count=50, seed=3)
    tracer = daemon()
    inside = only_child_of(program.process.pid)
    program._pid = inside
    tracer.attach_with_tables(inside)
    program.allocate()
    result = compared(tracer, program)
    assert (result.wrong, result.missing) == ([], 0)
    assert result.equal >= (1 - UNNAMED_SHARE) * 50


@pytest.mark.long
def test_an_interpreter_inside_the_interpreter(daemon, run) -> None:
    """Each has its own frames on the same thread; those outside are whole, before and after."""
    tracer = daemon()
    for interpreter in INTERPRETERS:
        expect_frames_inside(tracer, run(interpreter, PROGRAMS / "interpreters.py", 40))


def expect_frames_inside(tracer: Daemon, program: Paths) -> None:
    """Fail unless interpreters.py has the right frames, in the one interpreter and in the other."""
    tracer.attach_with_tables(program.pid)
    program.allocate()
    assert functions(tracer, program, 20_001) == [["keep", "outside", "main", "<module>"]]
    assert functions(tracer, program, 20_003) == [
        ["inside", "calls_inside", "<module>", "enter", "main", "<module>"]
    ]
    program.allocate()
    assert functions(tracer, program, 20_005) == [["keep", "outside", "main", "<module>"]]


def functions(tracer: Daemon, program: Paths, size_bytes: int) -> list[list[str | None]]:
    """The Python frames of each site that has bytearrays of a size."""
    sites = tracer.blocks(program.pid, "--limit", 100_000)["sites"]
    # A bytearray ends with a NUL.
    found = [site for site in sites if any(block["size_bytes"] == size_bytes + 1 for block in site["blocks"])]
    return [
        [frame["function"] for frame in site["stack"] if frame["kind"] == "interpreted"] for site in found
    ]


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_a_thread_that_changes_its_state(daemon, run, tmp_path: Path, interpreter: str) -> None:
    """Two states of one thread have frames: each loop has those that it runs, or once none."""
    library = tmp_path / "states.so"
    compiler = ["gcc", "-shared", "-fPIC", "-O1", "-o", library, PROGRAMS / "states.c"]
    subprocess.run(compiler, check=True)
    tracer = daemon()
    program = run(interpreter, PROGRAMS / "states.py", library)
    tracer.attach_with_tables(program.pid)
    program.allocate()
    outside = ["keep", "outside", "main", "<module>"]
    inside = ["keep", "inside", "<module>", "enter", "main", "<module>"]
    assert functions(tracer, program, 20_001) == [outside]
    found = functions(tracer, program, 20_003)
    assert inside in found
    assert all(one in (inside, []) for one in found)
    program.allocate()
    assert outside in functions(tracer, program, 20_005)
    assert all(one in (outside, []) for one in functions(tracer, program, 20_005))


def only_child_of(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_names_outlive_daemon_and_process(daemon, run) -> None:
    """The next daemon reads them again, and keeps those of a process that ends."""
    program = paths(run, SYSTEM, count=50, seed=4)
    tracer = daemon()
    tracer.attach_with_tables(program.pid)
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
    """Live bytes in arenas, by function."""
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


@pytest.mark.long
def test_who_makes_a_structure_grow_is_named_with_its_type(daemon, service) -> None:
    """Not the function that makes garbage, or that used up the last arena; for list, dict, set and deque."""
    tracer = daemon(history={"leak_after_s": 20})
    pids = {what: service(what) for what in LEAKS}
    for pid in pids.values():
        tracer.attach(pid)
    for what, (value, kind) in LEAKS.items():

        def worst(pid: int = pids[what]) -> dict[str, Any]:
            return tracer.top(pid)["sites"][0]

        # The function that fills a table is known once the table was enlarged, which takes twice as long each
        # time. Its blocks over 512 bytes are a separate site, which may be the first to be called a leak.
        wait_until(lambda f=what: (worst()["verdict"], worst()["function"]) == ("leak", f), 200)
        site = worst()
        if site["kind"] != "managed":
            continue
        assert site["location"].startswith("services.py:")
        assert site["type"].split(" +")[0] == value
        assert site["reason"].startswith(f"a {kind} of ")
        heap = tracer.top(pids[what])["managed"]
        assert (heap["runtime"], heap["verdict"], heap["is_read"]) == ("CPython", "leak", True)


@pytest.mark.long
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


NO_LEAKS = {
    "fill_cache": "bound of 1,000,000",
    "fill_log": "bound of 1,000,000",
    "drop_cycles": "garbage in cycles",
}


@pytest.mark.long
def test_what_fills_or_waits_for_the_collector_is_no_leak(daemon, service) -> None:
    """Blocks over 512 bytes, and the objects beside them: they grow as evenly as a leak."""
    tracer = daemon(history={"leak_after_s": 20})
    pids = {what: service(what) for what in NO_LEAKS}
    for pid in pids.values():
        tracer.attach(pid)
    left = dict(NO_LEAKS)

    def are_explained() -> bool:
        for what in NO_LEAKS:
            sites = tracer.top(pids[what])["sites"]
            assert [site for site in sites if site["verdict"] == "leak"] == []
            if any(left.get(what, "?") in site["reason"] for site in sites):
                del left[what]
        return not left

    wait_until(are_explained, 300)


COUNTERS = """
import gc
gc.disable()
gc.collect()
gc.collect(1)
stats = gc.get_stats()
print(stats[1]["collections"], stats[2]["collections"], gc.get_threshold()[2], gc.get_count()[2], flush=True)
input()
"""


@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_the_collector_is_read(interpreter: str) -> None:
    """Its counters, at the places of each version."""
    command = [interpreter, "-c", COUNTERS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            told = [int(word) for word in process.stdout.readline().split()]
            found = detect_cpython(read_process(process.pid), read_mappings(process.pid))
            assert found is not None
            assert found.live_heap is not None
            state = found.live_heap._collector()
            found.close()
        finally:
            process.kill()
    assert state is not None
    assert [state.middle_count, state.full_count, state.threshold, state.since_full] == told
    assert not state.is_enabled


def test_types_by_the_command(daemon, service) -> None:
    """Without a question, since the process hardly stops; and without a stop on request."""
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
