"""Blocks that a sampler inside the process announces: found by its probes, used in place of its functions."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.static_probes import StaticProbe, static_probes
from bpfleakd.kernel import bpf

from .daemons import ControlFailed, expect_heap_grew
from .inside_library import library
from .kernel_objects import space_events_so_far
from .machine import cannot_run
from .test_sampling import FAR, MIXED, SMALL, STACKS, expect_mean
from .truth import expect_ledger, expect_no_losses
from .waiting import wait_until

INTERVAL_BYTES = 4096
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")


@pytest.fixture
def preloaded(preloaded):
    """The same factory, with a short interval."""
    return partial(preloaded, interval_bytes=INTERVAL_BYTES)


ANNOUNCING = ("alloc", "free")


def probes_of(image: ElfImage, provider: str, names: Collection[str] = ANNOUNCING) -> list[StaticProbe]:
    """The probes of these names that a file has."""
    return [probe for probe in static_probes(image, provider) if probe.name in names]


def semaphores(
    pid: int, file: Path, provider: str = "otel_memory", names: Collection[str] = ANNOUNCING
) -> list[int]:
    """The current semaphores of a file's probes in a process."""
    with ElfImage.open(file) as image:
        places = [probe.semaphore_vaddr for probe in probes_of(image, provider, names)]
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    base = min(int(line.split("-")[0], 16) for line in lines if line.endswith(f"/{file.name}"))
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return [struct.unpack("H", os.pread(memory.fileno(), 2, base + place))[0] for place in places]


def test_a_sampler_of_any_program_is_understood(tracer, workload):
    """Arguments in registers, in memory, in arrays, as constants; the program's allocator is left alone."""
    program = workload("announcing")
    tracer.attach(program.pid)

    ledger = program.step(500)

    report = tracer.top_after_tick(program.pid)
    assert ledger["live_count"] == 1_000
    assert report["process"]["mode"] == "inside"
    expect_no_losses(report)
    expect_ledger(report, ledger)
    assert {probe["role"] for probe in tracer.process(program.pid)["probes"]} == {
        "sampled-alloc",
        "sampled-free",
    }
    assert all(site["truncated"] is None for site in report["sites"])


def raised(program) -> tuple[list[int], list[int]]:
    """The semaphores of the library's probes that processes share, and of those at its places."""
    return semaphores(program.pid, library()), semaphores(program.pid, library(), "bpfleak")


@contextlib.contextmanager
def hits_of(pid: int, provider: str) -> Iterator[Callable[[], list[int]]]:
    """How often each of a provider's probes in the library is hit; of the places, those in use."""
    values = semaphores(pid, library(), provider)
    with ElfImage.open(library()) as image:
        events = [
            bpf.open_uprobe_event(
                str(library()),
                image.file_offset_of(probe.vaddr),
                pid,
                False,
                image.file_offset_of(probe.semaphore_vaddr),
            )
            for probe, value in zip(probes_of(image, provider), values, strict=True)
            if value or provider == "otel_memory"
        ]
    try:
        yield lambda: [struct.unpack("Q", os.read(event, 8))[0] for event in events]
    finally:
        for event in events:
            os.close(event)


@pytest.mark.parametrize("attach_method", ["session", "multi", "perf"])
def test_the_semaphores_are_up_while_it_is_traced(daemon, preloaded, attach_method):
    """By every method to attach; down again after the detach."""
    program = preloaded("churn")
    tracer = daemon(attach_method=attach_method)
    shared, of_places = raised(program)
    assert not any(shared + of_places)

    tracer.control("attach", program.pid)
    shared, of_places = raised(program)
    assert shared == ([1, 1] if attach_method == "perf" else [0, 0])
    assert sum(of_places) == 2 - sum(shared), "a probe for blocks and one for their ends"

    tracer.detach(program.pid)
    shared, of_places = raised(program)
    assert not any(shared + of_places)


# Each block has a mark, and little else is done.
RESTING = """
import time
print("ready", flush=True)
while True:
    bytes(1 << 20)
    time.sleep(0.005)
"""


def test_announcements_take_a_small_part_of_what_a_process_does(daemon, service):
    """Its interval is longer while that is necessary; afterwards, and without the daemon, it is as before."""
    program = service("/usr/bin/env", f"LD_PRELOAD={library()}", sys.executable, "-c", RESTING)
    doublings = partial(semaphores, program.pid, library(), "bpfleak", ("coarser",))
    tracer = daemon()
    tracer.attach(program.pid)
    assert not any(doublings())

    wait_until(lambda: all(doublings()), timeout_s=90)
    wait_until(lambda: tracer.top(program.pid)["process"]["sample_interval_bytes"] > 4 << 20, timeout_s=30)

    tracer.kill()
    wait_until(lambda: not any(doublings()))
    assert sum(semaphores(program.pid, library(), "bpfleak")) == 2
    tracer.start()


def test_each_process_has_a_place_of_its_own(tracer, preloaded):
    """An event of one does not run through the links of the others; each has its own figures."""
    programs = [preloaded("sampling", "malloc", STACKS, *SMALL) for _ in range(3)]
    for program in programs:
        tracer.attach(program.pid)
    places = [tuple(raised(program)[1]) for program in programs]
    assert len(set(places)) == len(programs)

    for rounds, program in enumerate(programs, 1):
        ledger = program.step(rounds * 300)
        report = tracer.top_after_tick(program.pid)
        expect_no_losses(report)
        process = report["process"]
        assert abs(process["live_bytes"] - ledger["live_bytes"]) <= FAR * process["live_bytes_stderr"]


def test_another_tracer_sees_the_same(tracer, preloaded):
    """One at the probes of the convention, as of other projects, while a daemon has its place."""
    program = preloaded("sampling", "malloc", STACKS, *SMALL)
    tracer.attach(program.pid)

    with hits_of(program.pid, "otel_memory") as of_shared, hits_of(program.pid, "bpfleak") as of_places:
        program.step(300)
        program.step(-1)
        shared, places = of_shared(), of_places()

    assert sorted(shared) == sorted(places)
    assert len(shared) == 2
    assert min(shared) > 0


@pytest.mark.parametrize(
    ("function", "sizes", "rounds"),
    [
        ("malloc", SMALL, 1_000),
        ("malloc", MIXED, 60),
        ("calloc", SMALL, 300),
        ("realloc", SMALL, 300),
        ("memalign", SMALL, 300),
        ("posix_memalign", SMALL, 300),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_estimates_are_right_on_average(tracer, preloaded, function, sizes, rounds):
    """At 256 call sites, for bytes and blocks, live and allocated: as when the daemon itself samples."""
    program = preloaded("sampling", function, STACKS, *sizes)
    tracer.attach(program.pid)

    ledger = program.step(rounds)

    report = tracer.top_after_tick(program.pid)
    expect_no_losses(report)
    sites, process = report["sites"], report["process"]
    truth = ledger["sites"]["allocate_at_leaf"]
    for figure in ("live_bytes", "live_count", "allocated_bytes", "allocated_count"):
        values = [site[figure] for site in sites] + [0] * (STACKS - len(sites))
        expect_mean(values, truth[figure] / STACKS)
    for figure in ("live_bytes", "live_count"):
        error = process[f"{figure}_stderr"]
        assert abs(process[figure] - truth[figure]) <= FAR * error + 1
    assert process["mode"] == "inside"
    assert abs(process["sample_interval_bytes"] - INTERVAL_BYTES) < 0.05 * INTERVAL_BYTES


def test_nothing_is_left_of_what_was_freed(tracer, preloaded):
    """All blocks of sampled sizes are freed, and no free was missed."""
    program = preloaded("sampling", "malloc", 4, *MIXED)
    tracer.attach(program.pid)
    program.step(200)

    program.step(-1)

    report = tracer.top_after_tick(program.pid)
    expect_no_losses(report)
    assert report["process"]["allocated_count"] > 0
    assert report["process"]["live_bytes"] == report["process"]["live_count"] == 0


def test_a_killed_daemon_is_replaced_and_nothing_is_lost(daemon, workload):
    """Announcements in the meantime are counted; mode and probes are unchanged."""
    program = workload("announcing")
    tracer = daemon()
    tracer.attach(program.pid)
    program.step(100)

    tracer.kill()
    program.step(100)
    tracer.start()
    ledger = program.step(100)

    report = tracer.top_after_tick(program.pid)
    assert report["process"]["mode"] == "inside"
    assert tracer.process(program.pid)["adopted_count"] == 1
    expect_no_losses(report)
    expect_ledger(report, ledger)


def test_who_wants_every_block_gets_it(tracer, preloaded):
    """Mode exact probes the functions, those of the preloaded library as well: no call counts twice."""
    program = preloaded("every_function")
    tracer.control("attach", program.pid, "--mode", "exact")

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    assert report["process"]["mode"] == "exact"
    shared, of_places = raised(program)
    assert not any(shared + of_places)
    expect_ledger(report, ledger)


@pytest.mark.parametrize(
    ("name", "allocator", "mode"),
    [
        ("churn", "libtcmalloc_minimal.so.4", "inside"),
        ("churn", "libjemalloc.so.2", "inside"),
        # Its operators new do not go by way of malloc.
        ("cxx", "libtcmalloc_minimal.so.4", "exact"),
        ("cxx", "libjemalloc.so.2", "exact"),
        ("cxx", None, "inside"),
    ],
)
def test_a_sampler_is_used_where_it_sees_all(tracer, preloaded, name, allocator, mode):
    """In C with any allocator; in C++ unless the allocator has its own operators."""
    if allocator and not (LIBRARIES / allocator).exists():
        cannot_run(f"{allocator} is not installed (make setup FOR=test)")
    program = preloaded(name, after=f":{LIBRARIES / allocator}" if allocator else "")

    tracer.control("attach", program.pid)

    assert tracer.process(program.pid)["process"]["mode"] == mode


def test_without_a_sampler_there_is_nothing_to_be_had_from_inside(tracer, workload):
    """A request for it is refused, with a hint how to get one."""
    program = workload("churn")

    with pytest.raises(ControlFailed, match=r"(?s)no sampler inside.*bpfleakctl run"):
        tracer.control("attach", program.pid, "--mode", "inside")


def test_the_growth_of_an_arena_is_reported_by_megabytes(daemon, preloaded):
    """No probe shows that malloc calls mprotect: the first stacks do, and later calls have none."""
    program = preloaded("arena_growth")
    tracer = daemon()
    tracer.attach(program.pid)
    program.step(1_000)
    tracer.wait_for_ticks(2)
    before = space_events_so_far(tracer.bpffs_dir)

    program.step(10_000)

    assert 20 <= space_events_so_far(tracer.bpffs_dir) - before < 100
    tracer.wait_for_ticks(2)
    expect_heap_grew(tracer, program.pid, 20_000_000)
    expect_no_losses(tracer.top_after_tick(program.pid))
