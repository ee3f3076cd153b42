"""How many blocks a process gains is counted, also while blocks are sampled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bpfleakd.kernel import bpf
from bpfleakd.kernel.process_slots import ProcessCounters, ProcessSlots

STEPS = 10
# One thread after another, each with a cache of this many blocks: one free in 64 is checked.
CACHED = 16 * 7 * 30


def counters_of(pins: Path, pid: int) -> ProcessCounters:
    """The BPF programs' current counters of a process, from the daemon's maps."""
    descriptors = [bpf.object_get(pins / name) for name in ("processes", "slots")]
    rows = ProcessSlots(*descriptors)
    try:
        return rows.counters(pid)
    finally:
        rows.close()
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.mark.parametrize("interval_bytes", [4096, 65_536])
def test_what_a_process_gains_is_counted_while_blocks_are_sampled(daemon, workload, interval_bytes):
    """Through each function, nested ones, realloc of older blocks, and the caches of threads that end."""
    program = workload("renewing")
    tracer = daemon(sampling={"interval_bytes": interval_bytes})
    tracer.control("attach", program.pid, "--mode", "sampled")
    for _ in range(STEPS):
        ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    (pins,) = {path.parent for path in tracer.bpffs_dir.rglob("processes")}
    counters = counters_of(pins, program.pid)
    gained = ledger["gained_blocks"]
    # One in 64 of the frees that threads repeat was checked, so the error is about that of 64 each.
    error = (64 * STEPS * CACHED) ** 0.5
    assert abs(counters.gained_blocks - gained) < 4 * error + 0.02 * gained
    # without the estimate of those it would be far off
    assert 20 * error < STEPS * CACHED
    assert report["process"]["mode"] == "sampled"
