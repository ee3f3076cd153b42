"""Growth that continues, slows down, or has ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bpfleakd.verdicts.slowing import Course, course_of

Curve = Callable[[np.ndarray], np.ndarray]


def course(curve: Curve, until_s: float, *, points: int = 12, noise: float = 0.0, seed: int = 0) -> Course:
    """A curve up to a time, at this many readings."""
    times_s = np.linspace(until_s / points, until_s, points)
    values = curve(times_s) + noise * np.random.default_rng(seed).standard_normal(points)
    half = points // 2
    return course_of((times_s, values), (times_s[half:], values[half:]))


CACHES: dict[str, Curve] = {
    "logarithm": lambda t: 5 * np.log1p(t / 20),
    "saturation": lambda t: 50 * (1 - np.exp(-t / 100)),
    "root": lambda t: 2 * np.sqrt(t),
}


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("points", [8, 12])
def test_a_cache_fills_ever_more_slowly(name: str, points: int) -> None:
    for until_s in (180.0, 300.0, 600.0):
        assert course(CACHES[name], until_s, points=points) is not Course.EVEN, until_s


def test_a_cache_that_fills_evenly_and_is_full() -> None:
    def filled(times_s: np.ndarray) -> np.ndarray:
        return np.minimum(times_s, 100.0)

    assert course(filled, 95.0) is Course.EVEN
    assert course(filled, 240.0) is Course.ENDED


LEAKS: dict[str, Curve] = {
    "even": lambda t: 0.03 * t,
    "faster": lambda t: 1e-4 * t**2,
    "steps": lambda t: 0.03 * np.floor(t / 20) * 20,
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_goes_on(name: str) -> None:
    for until_s in (120.0, 600.0, 3_600.0):
        assert course(LEAKS[name], until_s) is Course.EVEN, until_s


def test_noise_seldom_bends_a_leak() -> None:
    """One in a hundred straight lines may be taken for a bent one."""
    found = [course(LEAKS["even"], 600.0, noise=2.0, seed=seed) for seed in range(400)]
    assert found.count(Course.EVEN) >= 380


def test_a_leak_above_a_cache_that_filled_first() -> None:
    """Once the later half of the time has the leak alone."""

    def both(times_s: np.ndarray) -> np.ndarray:
        return CACHES["saturation"](times_s) + 0.05 * times_s

    assert course(both, 150.0) is Course.SLOWS_DOWN
    assert course(both, 1_800.0) is Course.EVEN


@pytest.mark.parametrize("points", [1, 2, 3])
def test_too_few_points_are_even(points: int) -> None:
    assert course(CACHES["logarithm"], 300.0, points=points) is Course.EVEN
