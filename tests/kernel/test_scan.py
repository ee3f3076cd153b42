"""Lost blocks against the truth, and against LeakSanitizer and memcheck, block for block."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections import Counter

import pytest

from .daemons import ControlFailed
from .machine import need_tool
from .workloads import build

_KINDS = {
    "direct": "directly-lost",
    "indirect": "indirectly-lost",
    "possible": "possibly-lost",
    "reachable": "still-reachable",
}


def scan(tracer, pid: int, *options: str) -> dict:
    """A scan of blocks of any age, with all that are lost."""
    arguments = ("--older-than", "0", "--blocks", "--limit", 100_000, "--json", *options)
    return json.loads(tracer.control("scan", "--pid", pid, *arguments))


def blocks_in(report: dict) -> Counter:
    """The number of lost blocks of each kind and size."""
    return Counter(
        (block["reachability"], block["size_bytes"]) for site in report["sites"] for block in site["blocks"]
    )


def blocks_noted(ledger: dict) -> Counter:
    """The same by the workload's own account."""
    noted = Counter()
    for name, count in ledger.items():
        kind, _, size = name.partition("_")
        if kind in _KINDS and size.isdigit():
            noted[_KINDS[kind], int(size)] += int(count)
    return noted


def lost_of(blocks: Counter) -> Counter:
    return Counter({key: count for key, count in blocks.items() if key[0] != "still-reachable"})


def of_sizes(noted: Counter, blocks: Counter) -> Counter:
    """Without the blocks of the C library, which have other sizes."""
    sizes = {size for _kind, size in noted}
    return Counter({key: count for key, count in blocks.items() if key[1] in sizes})


@pytest.fixture
def scanned(daemon, workload):
    """A traced workload that has run its step: (daemon, program, ledger)."""

    def run(name: str):
        program = workload(name)
        tracer = daemon()
        tracer.attach(program.pid)
        ledger = program.step()
        return tracer, program, ledger

    return run


PROGRAMS = pytest.mark.parametrize("name", ["reachability", "ownership"])


@PROGRAMS
def test_every_kind(scanned, name):
    """Each block has the kind that the workload states."""
    tracer, program, ledger = scanned(name)

    report = scan(tracer, program.pid)

    noted = blocks_noted(ledger)
    assert of_sizes(noted, blocks_in(report)) == lost_of(noted)
    assert (report["method"], report["caveats"]) == ("stopped", [])
    assert 0 < report["stopped_s"] < 60
    sites = tracer.top(program.pid)["sites"]
    heap = [site["live_count"] for site in sites if site["kind"] == "heap"]
    assert sum(count for figure, count in report["sums"].items() if figure.endswith("_count")) == sum(heap)
    if name == "reachability":
        assert report["known_heap_bytes"] > 100_000
        # Two threads, whose tables of variables are known to us.
        (known,) = report["suppressed"].values()
        assert known["possibly_lost_count"] == 2
    # It is none the worse for it.
    program.exit()


@PROGRAMS
def test_memcheck_agrees(name):
    """For the same program, at the same place: each block has valgrind's kind."""
    options = ("--leak-check=full", "--show-leak-kinds=all", "--leak-check-heuristics=none")
    ledger, log = run_once([need_tool("valgrind"), *options, build(name)])

    found: Counter = Counter()
    kinds = {"definitely lost": "directly-lost", "indirectly lost": "indirectly-lost"}
    kinds |= {"possibly lost": "possibly-lost", "still reachable": "still-reachable"}
    # "72 (24 direct, 48 indirect) bytes in 1 blocks are definitely lost"
    line = r"==\d+== (?:[\d,]+ \()?([\d,]+)(?: direct, .*\))? bytes in ([\d,]+) blocks are (\w+ \w+)"
    for size, count, words in re.findall(line, log.partition("LEAK SUMMARY")[0]):
        found[kinds[words], number(size) // number(count)] += number(count)
    noted = blocks_noted(ledger)
    # memcheck counts a block below a lost block as directly lost if it visited the circle first.
    assert lost_sizes(found)[1039] == lost_sizes(noted)[1039]
    found, noted = without(found, 1039), without(noted, 1039)
    assert of_sizes(noted, found) == noted


@PROGRAMS
def test_leak_sanitizer_agrees(name):
    """It knows neither possible losses nor owners of circles, and does not search mappings."""
    ledger, log = run_once([build(f"{name}-lsan")])

    found: Counter = Counter()
    report = re.split(r"ERROR: LeakSanitizer", log)[1]
    for kind, size, count in re.findall(r"(Direct|Indirect) leak of (\d+) byte\(s\) in (\d+) object", report):
        found[f"{kind.lower()}ly-lost", int(size) // int(count)] += int(count)
    noted = blocks_noted(ledger)
    in_circles = {1031, 2040}
    for size in in_circles:
        assert found["indirectly-lost", size] == lost_sizes(noted)[size]
    for size in (*in_circles, 1123):
        found, noted = without(found, size), without(noted, size)
    vector = {2029, 2072}
    if not vector & lost_sizes(found).keys():
        # Compiled by gcc 14, a leftover on the stack points to it.
        for size in vector:
            noted = without(noted, size)
    expected = Counter({key: count for key, count in noted.items() if key[0] in LOST})
    assert of_sizes(noted, found) == expected


LOST = ("directly-lost", "indirectly-lost")


def lost_sizes(blocks: Counter) -> Counter:
    """How many blocks of each size are lost, directly or not."""
    sizes: Counter = Counter()
    for (kind, size), count in blocks.items():
        sizes[size] += count if kind in LOST else 0
    return sizes


def without(blocks: Counter, size: int) -> Counter:
    return Counter({key: count for key, count in blocks.items() if key[1] != size})


def number(text: str) -> int:
    return int(text.replace(",", ""))


def run_once(command: list) -> tuple[dict, str]:
    """The ledger after one step of a program, and its stderr."""
    done = subprocess.run(
        command, input="run\nexit\n", capture_output=True, text=True, timeout=120, check=False
    )
    return json.loads(done.stdout.splitlines()[1]), done.stderr


def test_without_stopping(scanned):
    """All but what only a register points to, and the answer says that it is less certain."""
    tracer, program, ledger = scanned("reachability")

    report = scan(tracer, program.pid, "--no-stop")

    noted = blocks_noted(ledger)
    # A block that only a register points to seems lost; one that only freed memory points to seems in use.
    expected = lost_of(noted) + Counter({("directly-lost", 1163): 1}) - Counter({("directly-lost", 1171): 1})
    assert report["known_heap_bytes"] == 0
    assert of_sizes(noted, blocks_in(report)) == expected
    assert (report["method"], report["stopped_s"]) == ("running", 0)
    assert report["caveats"] == ["not-stopped", "no-registers"]


def test_somebody_else_traces_it(daemon, workload):
    """A process can have only one tracer: the scan is refused with its name; without stopping it works."""
    program = workload("blocks")
    tracer = daemon()
    tracer.attach(program.pid)
    program.step(1)
    script = (
        "import sys; from bpfleakd.process.stopper import hold; held = hold(int(sys.argv[1]), 120.0);"
        "print('holding', flush=True); sys.stdin.read(); held.release()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(program.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"holding\n"
        words = f"is already being traced by python.*process {other.pid}"
        with pytest.raises(ControlFailed, match=words) as refused:
            scan(tracer, program.pid)
        assert refused.value.exit_code == 7
        assert scan(tracer, program.pid, "--no-stop")["read_bytes"] > 0
    finally:
        other.communicate()
    assert scan(tracer, program.pid)["method"] in ("stopped", "partly-stopped")
    program.exit()


@pytest.mark.parametrize("victim", ["program", "daemon"])
def test_killed_in_the_midst(daemon, workload, victim):
    """If the program is killed, the scan reports it and the daemon continues; if the daemon is killed, the
    program continues.
    """
    program = workload("many_sites", 101)
    tracer = daemon()
    tracer.attach(program.pid)
    program.step(50_021)
    answers: list[object] = []

    def ask():
        with contextlib.suppress(ControlFailed):
            answers.append(scan(tracer, program.pid))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(0.7)
    if victim == "program":
        program.kill()
        asking.join()
        assert tracer.ps() is not None
    else:
        tracer.kill()
        asking.join()
        program.step(1)


def test_nothing_in_use_is_lost(daemon, workload):
    """While threads move pointers through memory that is freed and used again, whenever it is looked at."""
    program = workload("moving")
    tracer = daemon()
    tracer.attach(program.pid)
    program.step(1)
    known: list[int] = []
    # If a thread is inside realloc, the blocks in use are unknown.
    while len([size for size in known if size > 0]) < 3:
        assert len(known) < 20
        report = scan(tracer, program.pid, "--stop-limit", "2000")
        assert report["sums"]["directly_lost_count"] == report["sums"]["indirectly_lost_count"] == 0
        assert report["sums"]["still_reachable_count"] >= 3 * 499
        known.append(report["known_heap_bytes"])
    assert max(known) > 3 * 499 * 1009
    program.step(0)


def test_reachable_of_call_sites(scanned):
    """`top` has the last scan's result for each call site, and null before it."""
    tracer, program, _ledger = scanned("ownership")
    before = tracer.top(program.pid)
    assert {(site["reachable"], site["scanned_age_s"]) for site in before["sites"]} == {(None, None)}

    scan(tracer, program.pid)

    def told(function):
        sites = tracer.top(program.pid)["sites"]
        return {
            site["reachable"]
            for site in sites
            if any((frame["function"] or "").startswith(function) for frame in site["stack"])
        }

    assert all(0 < site["scanned_age_s"] < 60 for site in tracer.top(program.pid)["sites"])
    assert told("kept_ones") == told("interiors") == {True}
    assert told("forgotten_vector") == told("partners") == {False}
