"""Victims of the OOM killer: traced ones are marked, watched ones get a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from bpfleakd.model.address_space import BillKind, BillLine
from bpfleakd.model.oom import OomVictim
from bpfleakd.model.process import ProcessId, ProcessState
from bpfleakd.model.report import LeakReport
from bpfleakd.process.memory_limits import MemoryLimitReader
from bpfleakd.queries.oom_kills import OomKills

from ..samples import a_report
from ..tracing.doubles import View, a_traced

MIB = 1 << 20
LINES = (BillLine(BillKind.HEAP_LIVE, 40 * MIB, 2_000_000.0), BillLine(BillKind.FILE, 2 * MIB, 0.0))


@dataclass
class World:
    """A kernel that reports victims, a tracer, and watched processes (by pid)."""

    proc: Path
    victims: list[OomVictim] = field(default_factory=list)
    watched: dict[int, tuple[ProcessId, int]] = field(default_factory=dict)
    kept: list[tuple[ProcessId, LeakReport]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.running: dict[int, object] = {}
        tracer = SimpleNamespace(
            clock_ns=lambda: 7_000_000_000,
            processes=SimpleNamespace(running=self.running),
            limits=MemoryLimitReader(self.proc, self.proc),
            memory=SimpleNamespace(quick_bill=lambda pid: (LINES, None)),
        )
        self.kills = OomKills(
            self,
            tracer,  # type: ignore[arg-type]
            self.watched.get,
            lambda process, report: self.kept.append((process, report)),
            self.proc,
        )

    def read(self) -> list[OomVictim]:
        found, self.victims = self.victims, []
        return found

    def end(self, traced, state: ProcessState = ProcessState.EXITED) -> None:
        """As the tracer does it."""
        traced.state = state
        self.kills.ending(View(traced))
        traced.final = a_report(traced.pid)
        self.running.pop(traced.pid, None)
        self.kills.ended(traced)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_traced_victim_is_marked(world: World) -> None:
    """And the log has its call sites."""
    traced = a_traced()
    world.running[traced.pid] = traced
    world.victims.append(OomVictim(traced.pid, 8_000_000_000, "shop", 40 * MIB))
    with capture_logs() as logs:
        world.kills.ticked(0.1)  # it has not ended yet
        world.end(traced)
    assert traced.state is ProcessState.OOM
    assert world.kills.total == 1
    assert traced.oom is not None
    assert traced.oom.anon_bytes == 40 * MIB
    (event,) = logs
    assert (event["event"], event["traced"]) == ("process.oom-killed", True)
    assert event["sites"] == ["1.91 MiB leak_here (leak)"]
    assert world.kept == []


@pytest.mark.parametrize("state", [ProcessState.DETACHED, ProcessState.EXECED, ProcessState.EXITED])
def test_others_end_as_ever(world: World, state: ProcessState) -> None:
    """An exit without a kill, and a kill of another process."""
    traced = a_traced()
    world.running[traced.pid] = traced
    world.victims.append(OomVictim(traced.pid + 1, 0))
    with capture_logs() as logs:
        world.end(traced, state)
    assert (traced.state, traced.oom, logs) == (state, None, [])


def test_a_thread_stands_for_its_process(world: World) -> None:
    """The kernel may name any of them."""
    traced = a_traced()
    world.running[traced.pid] = traced
    thread = world.proc / "4713"
    thread.mkdir()
    (thread / "status").write_text(f"Name:\tworker\nTgid:\t{traced.pid}\nPid:\t4713\n")
    world.victims.append(OomVictim(4713, 0))
    world.end(traced)
    assert traced.state is ProcessState.OOM


def test_a_watched_victim_gets_its_bill(world: World) -> None:
    """The last one before the kill; it has no call sites."""
    process = ProcessId(29, 8_009)
    world.watched[29] = process, 50 * MIB
    world.kills.note_reading(process, 50 * MIB)
    world.victims.append(OomVictim(29, 9_500_000_000, "shop"))
    with capture_logs() as logs:
        world.kills.ticked(0.1)
    ((kept_of, report),) = world.kept
    assert (kept_of, report.process.state, report.process.comm) == (process, ProcessState.OOM, "shop")
    assert report.oom is not None
    assert (report.oom.bill, report.oom.bill_age_s) == (LINES, 2.5)
    assert report.oom.growth_summary is not None
    assert logs[0]["bill"] == ["40.0 MiB heap_live", "2.00 MiB file"]
    assert logs[0]["anon_bytes"] == 50 * MIB
    world.kills.ticked(0.1)
    assert len(world.kept) == 1


def test_a_victim_that_nobody_watched_is_none_of_ours(world: World) -> None:
    """By the policy."""
    world.victims.append(OomVictim(31, 0, "other"))
    with capture_logs() as logs:
        world.kills.ticked(0.1)
    assert (world.kept, logs) == ([], [])
