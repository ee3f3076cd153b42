"""Names for JIT code from its perf map; and malformed perf maps."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from .truth import by_function, expect_ledger, site_of
from .waiting import wait_until


@pytest.fixture
def jit(workload):
    """The JIT workload, and its perf map, which the program removes (or the fixture, if it is killed)."""
    program = workload("jit")
    perf_map = Path(f"/tmp/perf-{program.pid}.map")
    yield program, perf_map
    perf_map.unlink(missing_ok=True)


def test_jitted_functions_have_the_names_of_the_perf_map(daemon, jit):
    """A return address inside a function is found in its range, and is marked as jit."""
    program, _perf_map = jit
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    site = site_of(report, "LeakyTemplate::render")
    frame = next(frame for frame in site["stack"] if frame["function"] == "LeakyTemplate::render")
    assert frame["kind"] == "jit"
    assert site["live_count"] == 23


def test_the_stack_goes_on_below_jitted_code(daemon, jit):
    """JIT code keeps the frame pointer: its caller, and main, are in the stack too."""
    program, _perf_map = jit
    tracer = daemon()
    tracer.attach(program.pid)

    program.step()

    site = site_of(tracer.top_after_tick(program.pid), "LeakyTemplate::render")
    functions = [frame["function"] for frame in site["stack"]]
    assert functions.index("LeakyTemplate::render") < functions.index("render_templates")
    assert "main" in functions


def test_what_the_jit_appends_later_is_read(daemon, jit):
    """A name that the JIT appends after the first reading is found some seconds later."""
    program, perf_map = jit
    text = perf_map.read_text()
    perf_map.write_text("")
    tracer = daemon()
    tracer.attach(program.pid)
    program.step()
    assert "LeakyTemplate::render" not in by_function(tracer.top_after_tick(program.pid))

    with perf_map.open("a") as file:
        file.write(text)

    report = wait_until(
        lambda: "LeakyTemplate::render" in by_function(found := tracer.top(program.pid)) and found
    )
    assert site_of(report, "LeakyTemplate::render")["live_count"] == 23


def _symlink(perf_map: Path) -> None:
    target = perf_map.with_suffix(".real")
    perf_map.rename(target)
    perf_map.symlink_to(target)


def _binary_junk(perf_map: Path) -> None:
    perf_map.write_bytes(os.urandom(1 << 20))


def _gigabyte(perf_map: Path) -> None:
    with perf_map.open("ab") as file:
        file.truncate(1 << 30)


def _terminal_escapes(perf_map: Path) -> None:
    text = perf_map.read_text()
    perf_map.write_text(text.replace("Leaky", "\x1b[2J\x07Leaky"))


def _fifo(perf_map: Path) -> None:
    perf_map.unlink()
    os.mkfifo(perf_map)


@pytest.mark.parametrize("spoil", [_symlink, _binary_junk, _gigabyte, _terminal_escapes, _fifo])
def test_a_hostile_perf_map_costs_names_and_nothing_else(daemon, jit, spoil):
    """The file is written by an unprivileged process: figures stay exact and the daemon unharmed."""
    program, perf_map = jit
    spoil(perf_map)
    try:
        tracer = daemon()
        tracer.attach(program.pid)

        ledger = program.step()

        report = tracer.top_after_tick(program.pid)
        assert report["process"]["live_count"] == ledger["live_count"]
        assert report["process"]["live_bytes"] == ledger["live_bytes"]
        for name in filter(None, by_function(report)):
            assert name.isprintable(), f"{name!r} would reach a terminal"
        status = Path(f"/proc/{tracer.pid}/status").read_text()
        assert int(re.search(r"VmRSS:\s*(\d+) kB", status)[1]) < 200_000
    finally:
        perf_map.with_suffix(".real").unlink(missing_ok=True)
