"""Lost blocks against the truth, and against LeakSanitizer and memcheck, block for block."""

from __future__ import annotations

import json
from collections import Counter

import pytest

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
    """How many blocks there are of each kind and size, of those that are lost."""
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
    """Without the blocks of the C library, which are of other sizes."""
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


@pytest.mark.parametrize("name", ["reachability"])
def test_every_kind(scanned, name):
    """Each block is of the kind that the workload says."""
    tracer, program, ledger = scanned(name)

    report = scan(tracer, program.pid)

    noted = blocks_noted(ledger)
    assert of_sizes(noted, blocks_in(report)) == lost_of(noted)
    judged = sum(report["sums"][name] for name in report["sums"] if name.endswith("_count"))
    assert judged == tracer.top(program.pid)["process"]["live_count"]
    assert report["method"] == "stopped"
    assert 0 < report["stopped_s"] < 10
    assert report["caveats"] == []
