"""How coarse a sampler inside a process should be, by what its announcements cost it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.tracing.sampling.inside_cost import DOUBLINGS_MAX, InsideCosts

NS_PER_S = 1_000_000_000
PID = 7


class Program:
    """A program that uses part of a core and announces blocks, fewer the coarser its sampler is."""

    def __init__(self, cores: float, per_s: float) -> None:
        self.cores, self.per_s = cores, per_s
        self.doublings = 0
        self._costs = InsideCosts(lambda _pid: round(self._cpu_ns))
        self._now_ns = 1_000 * NS_PER_S
        self._cpu_ns = self._hits = 0.0
        self.calls_per_s = 0.0
        self._calls = 0.0

    def run(self, seconds: int) -> list[int]:
        """The doublings after each second."""
        found = []
        for _second in range(seconds):
            self._now_ns += NS_PER_S
            self._cpu_ns += self.cores * NS_PER_S
            self._calls += self.calls_per_s
            self._hits += self.per_s / 2**self.doublings
            blocks = round(self._hits / 2)
            counters = ProcessCounters(
                RecordingState.RECORDING,
                0,
                0,
                {},
                probe_hits=round(self._hits + self._calls),
                recorded=blocks,
                released=round(self._hits) - blocks,
            )
            self.doublings = self._costs.wanted_doublings(PID, self.doublings, counters, self._now_ns)
            found.append(self.doublings)
        return found


@pytest.mark.parametrize(
    ("cores", "per_s", "doublings"),
    [
        # Both probes of 96 blocks in a second of processor time are under the limit.
        (1.0, 192, 0),
        (16.0, 16 * 192, 0),
        (0.5, 192, 1),
        (0.1, 96, 3),
        (0.05, 96, 4),
        (0.001, 96, DOUBLINGS_MAX),
        (0.02, 0, 0),
        (0.0, 0, 0),
    ],
)
def test_announcements_take_a_small_share(cores: float, per_s: float, doublings: int) -> None:
    """And no doubling more than needed: it settles within 20 s, and stays."""
    program = Program(cores, per_s)
    program.run(20)
    assert set(program.run(600)[5:]) == {doublings}


def test_few_announcements_are_counted_for_20_s() -> None:
    program = Program(0.01, 16)
    assert set(program.run(20)) == {0}
    assert program.run(1) == [3]


@pytest.mark.parametrize(("cores", "per_s", "doublings"), [(1.0, 700, 2), (0.5, 256, 2), (2.0, 500, 1)])
def test_so_many_that_it_is_certain_are_seen_early(cores: float, per_s: float, doublings: int) -> None:
    program = Program(cores, per_s)
    assert program.run(4)[-1] == doublings
    assert set(program.run(600)) == {doublings}


def test_a_short_burst_changes_nothing_for_long() -> None:
    program = Program(1.0, 2_048)
    assert program.run(5)[-1] > 0
    program.per_s = 16
    assert program.run(60)[-1] == 0


@pytest.mark.parametrize(("per_s", "left"), [(8, 2), (3, 1.5), (2, 2), (1, 1)])
def test_a_process_that_does_little_keeps_some_blocks(per_s: float, left: float) -> None:
    program = Program(0.0001, per_s)
    program.run(600)
    assert per_s / 2**program.doublings == left


def test_the_sampler_can_be_told_so_often() -> None:
    header = (Path(__file__).parents[4] / "inside" / "probes.h").read_text()
    assert re.findall(r"#define MAX_WANTED_DOUBLINGS (\d+)", header) == [str(DOUBLINGS_MAX)]


def test_its_interval_is_as_before_when_it_announces_less() -> None:
    program = Program(0.1, 256)
    program.run(60)
    program.per_s = 4

    assert program.run(60)[-1] == 0


def test_a_cost_near_the_limit_does_not_swing() -> None:
    """The limit is 0.5 %: half of a cost just above it is not so little that the interval is halved again."""
    program = Program(1.0, 201)
    assert len(set(program.run(600)[40:])) == 1
    program.per_s = 180
    assert len(set(program.run(600)[40:])) == 1


def test_system_calls_are_not_announcements() -> None:
    program = Program(0.5, 100)
    program.calls_per_s = 4_000
    assert set(program.run(100)) == {0}


def test_a_process_that_has_just_ended_changes_nothing() -> None:
    def ended(_pid: int) -> int:
        raise ProcessLookupError

    costs = InsideCosts(ended)
    counters = ProcessCounters(RecordingState.RECORDING, 0, 0, {}, recorded=9_999)
    assert [costs.wanted_doublings(PID, 3, counters, s * NS_PER_S) for s in (0, 30, 60)] == [3, 3, 3]
