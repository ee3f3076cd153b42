"""How densely blocks are recorded: cut at once, denser again slowly, exact where that is cheap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.analysis.sampling_rate import (
    MAX_SHIFT,
    MIN_SHIFT,
    RecordingRates,
    SamplingState,
    adapted,
    next_crowded,
)

TARGET = 1_000.0


def rates(**changes: float) -> RecordingRates:
    """One second of an idle process, except for the given figures."""
    figures = {"elapsed_s": 1.0, "records_per_s": 0.0, "bytes_per_s": 0.0, "hits_per_s": 0.0, "filled": 0.0}
    return RecordingRates(**{**figures, **changes})


def test_little_is_recorded_exactly() -> None:
    """For ever."""
    state = SamplingState(0)
    for _second in range(100):
        state = adapted(state, rates(records_per_s=900, bytes_per_s=9e9, hits_per_s=3_000), TARGET)
    assert state.shift == 0


def test_too_much_is_sampled_at_once() -> None:
    """So the bytes of a second give the target number of intervals."""
    busy = rates(records_per_s=200_000, bytes_per_s=50e6, hits_per_s=600_000)
    assert adapted(SamplingState(0), busy, TARGET) == SamplingState(16)  # 50 MB/s in 64 KiB: 763


def test_still_too_much_is_cut_by_as_much() -> None:
    """Eight times too much is three steps."""
    assert adapted(SamplingState(13), rates(records_per_s=8_000), TARGET).shift == 16
    assert adapted(SamplingState(13), rates(records_per_s=1_600), TARGET).shift == 14


def test_enough_stays_as_it_is() -> None:
    """Between a quarter of the target and half as much again nothing changes."""
    for records_per_s in (250, 1_000, 1_500):
        state = SamplingState(15)
        for _second in range(20):
            state = adapted(state, rates(records_per_s=records_per_s, hits_per_s=1e6), TARGET)
        assert state.shift == 15


def test_denser_again_after_calm_seconds() -> None:
    """One step in five of them."""
    state, shifts = SamplingState(15), []
    for _second in range(10):
        state = adapted(state, rates(records_per_s=100, hits_per_s=1e6), TARGET)
        shifts.append(state.shift)
    assert shifts == [15] * 4 + [14] * 5 + [13]


def test_a_burst_begins_the_calm_anew() -> None:
    """Four calm seconds before it count for nothing."""
    state = SamplingState(15, calm_s=4.0)
    state = adapted(state, rates(records_per_s=900, hits_per_s=1e6), TARGET)
    assert state == SamplingState(15)


def test_exact_again_when_all_calls_are_few() -> None:
    """From any interval, in one go."""
    state = SamplingState(20)
    for _second in range(5):
        state = adapted(state, rates(records_per_s=3, hits_per_s=1_900), TARGET)
    assert state.shift == 0


def test_many_calls_are_never_recorded_exactly_because_few_of_them_are() -> None:
    """The rate stops at the densest sampling."""
    state = SamplingState(MIN_SHIFT + 1)
    for _second in range(50):
        state = adapted(state, rates(records_per_s=10, hits_per_s=100_000), TARGET)
    assert state.shift == MIN_SHIFT


@pytest.mark.parametrize("shift", [0, 13])
def test_a_table_that_fills_up_coarsens(shift: int) -> None:
    """Before it is full, however little comes at a time."""
    state = adapted(SamplingState(shift), rates(records_per_s=10, filled=0.6), TARGET)
    assert state.shift == max(MIN_SHIFT, shift + 1)


@pytest.mark.parametrize("per_s", [5.0, 600.0, 1_400.0])
def test_a_leak_that_fills_the_table_is_still_recorded(per_s: float) -> None:
    """Blocks of 128 bytes that stay, for an hour: the table never fills, and enough of them are seen."""
    capacity, live, state = 1 << 17, 0.0, SamplingState(0)
    for _second in range(3_600):
        recorded = per_s * (128 / (1 << state.shift) if state.shift else 1.0)
        live += recorded
        figures = {"bytes_per_s": 128 * per_s, "hits_per_s": per_s, "filled": live / capacity}
        state = adapted(state, rates(records_per_s=recorded, **figures), TARGET)
    assert live < capacity
    assert recorded > 2.0


@pytest.mark.parametrize("filled", [0.0, 0.4, 0.6, 0.9])
def test_a_step_for_each_half_of_the_room(filled: float) -> None:
    """Until half of what was left is used, the interval stays as it is."""
    state = SamplingState(13, crowded_at=next_crowded(filled))
    assert adapted(state, rates(records_per_s=300, filled=state.crowded_at - 0.01), TARGET).shift == 13
    assert adapted(state, rates(records_per_s=300, filled=state.crowded_at + 0.01), TARGET).shift == 14


@given(
    shift=st.sampled_from([0, *range(MIN_SHIFT, MAX_SHIFT + 1)]),
    calm_s=st.floats(0, 10),
    figures=st.fixed_dictionaries(
        {
            "elapsed_s": st.floats(1e-3, 1e4),
            "records_per_s": st.floats(0, 1e9),
            "bytes_per_s": st.floats(0, 1e15),
            "hits_per_s": st.floats(0, 1e9),
            "filled": st.floats(0, 1),
        }
    ),
    target=st.floats(10, 1e6),
)
def test_any_rates(shift: int, calm_s: float, figures: dict[str, float], target: float) -> None:
    """An interval is one that the programs know, and it never falls when too much is recorded."""
    after = adapted(SamplingState(shift, calm_s), RecordingRates(**figures), target)
    assert after.shift == 0 or MIN_SHIFT <= after.shift <= MAX_SHIFT
    if figures["records_per_s"] > 1.5 * target:
        assert after.shift >= max(MIN_SHIFT, min(shift + 1, MAX_SHIFT))
