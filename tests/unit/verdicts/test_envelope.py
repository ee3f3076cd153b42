"""Envelopes and their rises, with hand-made series and against the distributions they claim."""

from __future__ import annotations

import numpy as np
import pytest

from bpfleakd.verdicts.envelope import (
    CELLS,
    grid_of,
    longest_excursion_s,
    lower_envelope,
    rise_of,
    values_at,
)


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float64)[:, None]


def test_the_envelope_is_what_was_never_given_back() -> None:
    """It is the least from a time on, and so never falls."""
    low = column(1, 5, 2, 6, 3, 9)
    envelope = lower_envelope(low)
    assert envelope[:, 0].tolist() == [1, 2, 2, 3, 3, 9]
    assert longest_excursion_s(low, envelope, np.array([1.0, 2, 1, 4, 1, 1])).tolist() == [4.0]


def test_values_lie_between_the_ends_of_bins() -> None:
    """Sums over bins begin at 0; envelopes do not rise within the first bin."""
    ends_s, curve = np.array([2.0, 4.0]), column(10, 20)
    times_s = column(0, 1, 2, 3, 5)
    assert values_at(curve, ends_s, times_s, from_zero=True)[:, 0].tolist() == [0, 5, 10, 15, 20]
    assert values_at(curve, ends_s, times_s, from_zero=False)[:, 0].tolist() == [10, 10, 10, 15, 20]


@pytest.mark.parametrize(("jumps", "steps"), [([3], 1), ([2, 9, 17, 23], 4), (range(CELLS), CELLS)])
def test_equal_steps_are_counted(jumps: list[int], steps: int) -> None:
    """However high they are."""
    gains = np.zeros(CELLS)
    gains[list(jumps)] = 1e6
    rise = rise_of(np.concatenate([[7], 7 + np.cumsum(gains)])[:, None])
    assert rise.steps[0] == pytest.approx(steps)
    assert rise.gain[0] == pytest.approx(1e6 * steps)
    assert rise.silence[0] == pytest.approx(1 - (max(jumps) + 1) / CELLS)


def test_nothing_gained() -> None:
    """No growth has no steps, no silence and no trend."""
    rise = rise_of(np.full((CELLS + 1, 1), 23.0))
    assert (rise.gain[0], rise.steps[0], rise.silence[0], rise.z_rate[0]) == (0, 0, 0, 0)


def test_even_steps_look_uneven_as_rarely_as_claimed() -> None:
    """Of 4,000 series of 12 steps at random times, the tests reject no more than they claim."""
    random = np.random.default_rng(23)
    times = random.uniform(0, 1, (12, 4000))
    gains = np.stack([np.bincount((site * CELLS).astype(int), minlength=CELLS) for site in times.T], axis=1)
    rise = rise_of(np.concatenate([np.zeros((1, 4000)), np.cumsum(gains, axis=0)]))
    assert (rise.log_p_first_third < np.log(0.1)).mean() < 0.1
    assert (rise.log_p_silence < np.log(0.1)).mean() < 0.1
    assert 0.01 < (rise.z_rate < -1.645).mean() < 0.08


def test_a_grid_of_each_sites_own() -> None:
    """From the start to the end of each."""
    grid = grid_of(np.array([0.0, 10.0]), np.array([24.0, 34.0]))
    assert grid.shape == (CELLS + 1, 2)
    assert grid[:, 0] == pytest.approx(np.arange(25))
    assert grid[-1].tolist() == [24.0, 34.0]
