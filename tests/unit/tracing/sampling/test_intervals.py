"""The intervals of sampled processes: which are adapted, and the guard's limits on them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.process import TracingMode, TracingRequest
from bpfleakd.tracing.sampling.intervals import FIRST_SHIFT, Sampling, SamplingOptions

PID = 4711
SECOND = 1_000_000_000
NOTHING = ProcessCounters(RecordingState.RECORDING, 0, 0, {})


class FakeMaps:
    """kernel.maps.Maps: the settings of the programs, and their counts."""

    def __init__(self) -> None:
        self.counters = NOTHING

    def process(self, pid: int) -> ProcessCounters:
        assert pid == PID
        return self.counters

    def live_capacity(self, pid: int) -> int:
        assert pid == PID
        return 100_000_000

    def set_sampling(self, pid: int, shift: int) -> None:
        assert pid == PID
        self.counters = replace(
            self.counters, sample_shift=shift, was_sampled=self.counters.was_sampled or bool(shift)
        )

    def run(self, *, recorded: int) -> None:
        counters = self.counters
        self.counters = replace(
            counters, recorded=counters.recorded + recorded, probe_hits=counters.probe_hits + 100 * recorded
        )


@pytest.fixture
def maps() -> FakeMaps:
    return FakeMaps()


def sampling(maps: FakeMaps, interval_bytes: int | None = None) -> Sampling:
    return Sampling(maps, SamplingOptions(1_000.0, interval_bytes))


def test_an_exact_process_stays_exact(maps):
    """However much it allocates: that is for the guard to judge."""
    subject = sampling(maps)
    subject.begin(PID, TracingRequest(TracingMode.EXACT), 0)
    maps.run(recorded=1_000_000)
    subject.adapt(PID, maps.counters, 1 << 30, SECOND)
    assert (maps.counters.sample_shift, maps.counters.was_sampled) == (0, False)


def test_what_is_too_dear_is_sampled_and_goes_back(maps):
    """Level by level, and at level 0 every block is recorded again."""
    subject = sampling(maps)
    subject.begin(PID, TracingRequest(TracingMode.EXACT), 0)
    subject.set_level(PID, 1, maps.counters, 0)
    assert maps.counters.sample_shift == FIRST_SHIFT
    subject.set_level(PID, 0, maps.counters, SECOND)
    assert maps.counters.sample_shift == 0
    maps.run(recorded=1_000_000)
    subject.adapt(PID, maps.counters, 1 << 30, 2 * SECOND)
    assert maps.counters.sample_shift == 0


def test_a_higher_level_records_an_eighth(maps):
    """A rate well below the target at the first level is too high at the second."""
    subject = sampling(maps)
    subject.begin(PID, TracingRequest(TracingMode.SAMPLED), 0)
    for level, seconds in ((1, 1), (2, 2)):
        before = maps.counters.sample_shift
        subject.set_level(PID, level, maps.counters, seconds * SECOND)
        maps.run(recorded=900)
        subject.adapt(PID, maps.counters, 1 << 30, seconds * SECOND + SECOND // 2)
        assert (maps.counters.sample_shift > before) == (level == 2)


def test_a_limited_process_is_never_recorded_exactly(maps):
    """Though it allocates little now: exact recording was too expensive."""
    subject = sampling(maps)
    subject.begin(PID, TracingRequest(TracingMode.AUTO), 0)
    subject.set_level(PID, 1, maps.counters, 0)
    for second in range(1, 200):
        subject.adapt(PID, maps.counters, 0, second * SECOND)
    assert maps.counters.sample_shift > 0
    subject.set_level(PID, 0, maps.counters, 200 * SECOND)
    for second in range(201, 400):
        subject.adapt(PID, maps.counters, 0, second * SECOND)
    assert maps.counters.sample_shift == 0


def test_a_fixed_interval_comes_back(maps):
    """The configuration's, after the guard releases the process."""
    subject = sampling(maps, interval_bytes=1 << 18)
    subject.begin(PID, TracingRequest(TracingMode.SAMPLED), 0)
    subject.set_level(PID, 2, maps.counters, 0)
    maps.run(recorded=100_000)
    subject.adapt(PID, maps.counters, 1 << 30, SECOND)
    assert maps.counters.sample_shift > 18
    subject.set_level(PID, 0, maps.counters, 2 * SECOND)
    assert maps.counters.sample_shift == 18


def test_what_ended_is_forgotten(maps):
    """Its pid may be another process' soon."""
    subject = sampling(maps)
    subject.begin(PID, TracingRequest(TracingMode.EXACT), 0)
    subject.set_level(PID, 1, maps.counters, 0)
    subject.forget(PID)
    maps.counters = NOTHING
    maps.run(recorded=1_000_000)
    subject.adapt(PID, maps.counters, 1 << 30, SECOND)
    assert maps.counters.sample_shift == 0


@pytest.mark.parametrize("mode", [TracingMode.EXACT, TracingMode.SAMPLED, TracingMode.AUTO])
@pytest.mark.parametrize("interval_bytes", [None, 1 << 18])
def test_the_next_daemon_samples_as_this_one_did(maps, mode, interval_bytes):
    """At the same interval and level; at level 0 as the mode says, whatever the guard did meanwhile."""
    request = TracingRequest(mode, level=2)
    before, after = sampling(maps, interval_bytes), sampling(maps, interval_bytes)
    before.begin(PID, replace(request, level=0), 0)
    at_level_0 = maps.counters.sample_shift
    before.set_level(PID, 2, maps.counters, 0)
    shift = maps.counters.sample_shift

    after.resume(PID, request, SECOND)
    after.adapt(PID, maps.counters, 1 << 40, 2 * SECOND)
    assert maps.counters.sample_shift == shift, "what was allocated before is not the rate of now"
    maps.run(recorded=900)
    after.adapt(PID, maps.counters, (1 << 40) + (1 << 30), 3 * SECOND)
    assert maps.counters.sample_shift > shift
    after.set_level(PID, 0, maps.counters, 4 * SECOND)
    if mode is TracingMode.EXACT or interval_bytes:
        assert maps.counters.sample_shift == at_level_0
    else:
        assert maps.counters.sample_shift > 0


def test_a_process_that_was_not_sampled_yet_may_be_later(maps):
    """Also by the next daemon: its mode is AUTO, though every block was recorded so far."""
    subject = sampling(maps)
    subject.resume(PID, TracingRequest(TracingMode.AUTO), 0)
    subject.adapt(PID, maps.counters, 0, SECOND)
    maps.run(recorded=1_000_000)
    subject.adapt(PID, maps.counters, 1 << 33, 2 * SECOND)
    assert maps.counters.sample_shift > 0
