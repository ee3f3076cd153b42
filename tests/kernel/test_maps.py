"""`bpfleakctl maps` of real programs: every use right to the page, and the shares that explain it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .daemons import ControlFailed, maps_of
from .waiting import wait_until

PAGE = 4096


def figures(report: dict, field: str) -> dict[str, int]:
    """One figure of all uses."""
    return {use["use"]: use[field] for use in report["uses"]}


def expect_sums(report: dict) -> None:
    """Fail unless uses and shares add up."""
    for field in ("virtual_bytes", "resident_bytes", "swap_bytes"):
        assert sum(figures(report, field).values()) == report[field]
    shares = dict(report["shares"])
    explained_share = shares.pop("explained_share")
    assert sum(shares.values()) == report["resident_bytes"]
    assert explained_share == pytest.approx(1 - shares["rest_bytes"] / report["resident_bytes"], abs=1e-4)


def total(report: dict, field: str) -> int:
    return sum(figures(report, field).values())


@pytest.fixture
def traced(daemon, workload):
    """The workload after a first step, which brings its code into memory, and a daemon attached to it."""
    program = workload("memory_uses")
    program.step()
    tracer = daemon()
    tracer.attach(program.pid)
    return tracer, program


def test_every_use_has_what_the_program_took_of_it(traced):
    """Virtual and resident bytes of two steps, to the page: also where the kernel joined heap and mmap."""
    tracer, program = traced
    before = program.ledger()

    program.step()
    after = program.step()

    report = maps_of(tracer, program.pid)
    taken = {name: after[name] - before[name] for name in after if name.endswith(("_virtual", "_resident"))}
    virtual = figures(report, "virtual_growth_bytes")
    resident = figures(report, "resident_growth_bytes")
    for use in ("heap", "mmap", "commit", "files", "jit", "shared", "reserved"):
        assert (use, virtual[use]) == (use, taken[f"{use}_virtual"])
        assert (use, resident[use]) == (use, taken.get(f"{use}_resident", 0))
    assert virtual["thread-stacks"] == taken["stacks_virtual"]
    expect_sums(report)
    assert {reason for reason, count in report["losses"].items() if count} == set()


def test_the_shares_are_what_call_sites_hold(traced):
    """Tracked heap, mmap and commit equal what the program has taken and touched since the attach."""
    tracer, program = traced
    before = program.ledger()

    after = program.step()

    report = maps_of(tracer, program.pid)
    live = after["live_bytes"] - before["live_bytes"]
    heap_sites = [s for s in tracer.top(program.pid)["sites"] if s["kind"] == "heap"]
    tracked_heap = sum(site["live_bytes"] for site in heap_sites)
    # pthread_create has some hundred bytes for each thread, which are live, too.
    assert live <= tracked_heap < live + PAGE
    shares = report["shares"]
    assert shares["tracked_heap_bytes"] == tracked_heap
    assert shares["tracked_commit_bytes"] == after["commit_resident"] - before["commit_resident"]
    # Executable anonymous memory is mapped by a call site, too: 37 of its pages are touched.
    assert shares["tracked_mmap_bytes"] == after["mmap_resident"] - before["mmap_resident"] + 37 * PAGE
    heap_resident = figures(report, "resident_bytes")["heap"]
    assert shares["allocator_retained_bytes"] == heap_resident - tracked_heap


def test_what_is_there_already_is_told_by_its_looks(traced):
    """Stacks of threads from before the attach, JIT code and shared memory; nothing has grown."""
    tracer, program = traced
    ledger = program.ledger()

    report = maps_of(tracer, program.pid)

    smaps = Path(f"/proc/{program.pid}/maps").read_text().splitlines()
    (main_stack,) = [line for line in smaps if line.endswith("[stack]")]
    start, end = (int(part, 16) for part in main_stack.split()[0].split("-"))
    virtual = figures(report, "virtual_bytes")
    # The stack of the first step has no page without access before it that would tell it.
    stacks = virtual["thread-stacks"] - (end - start)
    assert stacks in (ledger["baseline_stacks"], ledger["baseline_stacks"] + ledger["stacks_virtual"])
    assert virtual["jit"] == ledger["jit_virtual"]
    assert virtual["shared"] == ledger["shared_virtual"]
    assert "commit" not in virtual
    assert total(report, "virtual_growth_bytes") == 0
    growth = figures(report, "resident_growth_bytes")
    # When a breakpoint in the C library is placed or removed anywhere, the kernel reads its page in each
    # process that maps it, which faults it in with its 15 neighbours.
    assert growth.pop("files") in range(0, 1 << 20, PAGE)
    assert set(growth.values()) == {0}
    expect_sums(report)


def test_resident_bytes_are_the_kernels(traced):
    """The sum over the mappings is VmRSS, and the virtual one VmSize."""
    tracer, program = traced

    report = maps_of(tracer, program.pid)

    status = dict(line.split(":\t") for line in Path(f"/proc/{program.pid}/status").read_text().splitlines())
    assert report["virtual_bytes"] == int(status["VmSize"].split()[0]) * 1024
    # The kernel's own counter may lag behind by some pages a processor.
    assert report["resident_bytes"] == pytest.approx(int(status["VmRSS"].split()[0]) * 1024, abs=1 << 20)
    assert report["peak_resident_bytes"] == int(status["VmHWM"].split()[0]) * 1024


def test_growing_jit_code_is_named_by_its_modules(daemon, workload):
    """The growth of the perf map since the attach, the module with the most code first."""
    program = workload("jit")
    perf_map = Path(f"/tmp/perf-{program.pid}.map")
    try:
        tracer = daemon()
        tracer.attach(program.pid)
        assert maps_of(tracer, program.pid)["jit_modules"] == []

        with perf_map.open("a") as file:
            for n in range(23):
                file.write(
                    f"{0x7000_0000_0000 + n * 64:x} 40 void [Generated{n % 2}] Template::Render{n}()[Tier0]\n"
                )
            file.write("7000000f0000 1000 void [Other] Big::Method()[Tier0]\n")

        modules = maps_of(tracer, program.pid)["jit_modules"]
        assert modules == [
            {"module": "Other", "new_methods": 1, "new_bytes": 0x1000},
            {"module": "Generated0", "new_methods": 12, "new_bytes": 12 * 0x40},
            {"module": "Generated1", "new_methods": 11, "new_bytes": 11 * 0x40},
        ]
        assert maps_of(tracer, program.pid)["jit_modules"] == modules
    finally:
        perf_map.unlink(missing_ok=True)


def test_the_view_is_for_people(traced):
    """Three tables, with the figures of the JSON."""
    tracer, program = traced
    program.step()

    text = tracer.control("maps", "--pid", program.pid)

    assert text.startswith(f"{program.pid} memory_uses  attached ")
    assert "mmap anonymous" in text
    assert "explained: " in text


def test_a_process_that_has_ended_or_is_not_traced_is_said_so(traced):
    """With the exit codes of the errors."""
    tracer, program = traced
    program.exit()
    wait_until(lambda: tracer.process(program.pid)["process"]["state"] == "exited")
    with pytest.raises(ControlFailed) as caught:
        maps_of(tracer, program.pid)
    assert caught.value.exit_code == 6
    with pytest.raises(ControlFailed) as caught:
        maps_of(tracer, 1)
    assert caught.value.exit_code == 5
