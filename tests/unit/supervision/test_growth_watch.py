"""Growth and what only looks like it: synthetic series of the memory of a process."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.supervision.growth_watch import GrowthOptions, GrowthWatch, WatchedGrowth

MIB = 1 << 20
MINUTE_S, HOUR_S = 60, 3600
OPTIONS = GrowthOptions()


def verdicts(
    memory: Callable[[float], float],
    until_s: float,
    interval_s: float = 10.0,
    options: GrowthOptions = OPTIONS,
) -> list[tuple[float, WatchedGrowth | None]]:
    """(time, verdict) after each reading of `memory`, a function of the time."""
    watch = GrowthWatch(0.0, options)
    found = []
    for n in range(int(until_s / interval_s) + 1):
        watch.add(n * interval_s, max(0, int(memory(n * interval_s))))
        found.append((n * interval_s, watch.growth))
    return found


def first_growth_s(memory: Callable[[float], float], until_s: float, **options) -> float | None:
    return next((time_s for time_s, growth in verdicts(memory, until_s, **options) if growth), None)


def never_grows(memory: Callable[[float], float], until_s: float, after_s: float = 0.0, **options) -> bool:
    return not any(growth for time_s, growth in verdicts(memory, until_s, **options) if time_s > after_s)


class TestGrowth:
    """Growth that should be traced."""

    def test_a_fast_leak_is_found_in_a_window_after_the_warm_up(self):
        """With its rate."""
        found = verdicts(lambda s: 50 * MIB + s * MIB, 10 * MINUTE_S)
        first_s, growth = next(pair for pair in found if pair[1])
        assert first_s <= OPTIONS.warmup_s + OPTIONS.window_s + 2 * OPTIONS.stretch_s
        assert growth.bytes_per_s == pytest.approx(MIB, rel=0.05)
        assert growth.window_s == OPTIONS.window_s

    def test_a_slow_leak_is_found_in_the_longest_window(self):
        """3 MiB in an hour: a few pages in five minutes."""
        leak = 3 * MIB / HOUR_S
        growth = verdicts(lambda s: 50 * MIB + s * leak, 2 * HOUR_S)[-1][1]
        assert growth.window_s > OPTIONS.window_s
        assert growth.bytes_per_s == pytest.approx(leak, rel=0.05)

    def test_growth_by_many_steps_is_growth(self):
        """An arena at a time, every minute."""
        assert first_growth_s(lambda s: 50 * MIB + s // MINUTE_S * 4 * MIB, HOUR_S) is not None

    def test_growth_under_noise_is_growth(self):
        """Readings that wobble by twice what leaks in ten seconds."""
        noise = random.Random(23)
        assert first_growth_s(lambda s: 50 * MIB + s * MIB / 10 + noise.uniform(0, 2 * MIB), HOUR_S)

    def test_a_leak_under_a_garbage_collector_is_growth(self):
        """The floor rises by as much as the ceiling, however far the heap swings in between."""
        assert first_growth_s(lambda s: 50 * MIB + s * MIB / 10 + s % 70 / 70 * 20 * MIB, HOUR_S)

    def test_growth_of_a_large_process_has_to_be_a_share_of_it(self):
        """20 MiB are much for a shell, and nothing for a database of 64 GiB."""
        leak = 20 * MIB / HOUR_S
        assert first_growth_s(lambda s: MIB + s * leak, 2 * HOUR_S)
        assert never_grows(lambda s: 65536 * MIB + s * leak, 2 * HOUR_S)

    def test_a_reading_that_is_missing_does_not_hide_it(self):
        """A machine that is busy reads late."""
        watch = GrowthWatch(0.0, OPTIONS)
        for n in range(60):
            if n % 12 < 8:
                watch.add(n * 10.0, 50 * MIB + n * MIB)
        assert watch.growth

    def test_it_ends_when_the_growth_does(self):
        """Two quarters of the window at most after the last byte."""
        found = verdicts(lambda s: 50 * MIB + min(s, 30 * MINUTE_S) * MIB, 3 * HOUR_S)
        last_s = max(time_s for time_s, growth in found if growth)
        assert 30 * MINUTE_S < last_s <= 30 * MINUTE_S + HOUR_S / 2


class TestNoGrowth:
    """Changes that should not be traced."""

    @pytest.mark.parametrize("at_s", range(2 * MINUTE_S, 12 * MINUTE_S, 50))
    def test_one_jump_is_not_growth(self, at_s):
        """A large buffer, at whatever moment."""
        assert never_grows(lambda s: 50 * MIB + 300 * MIB * (s >= at_s), 2 * HOUR_S)

    @pytest.mark.parametrize("fill_s", [10, 45, 90, 150])
    @pytest.mark.parametrize("at_s", [2 * MINUTE_S, 13 * MINUTE_S])
    def test_a_cache_that_fills_within_half_a_window_is_not_growth(self, at_s, fill_s):
        """It is full before it can be told from a leak."""
        share = lambda s: min(1.0, max(0.0, (s - at_s) / fill_s))  # noqa: E731
        assert never_grows(lambda s: 50 * MIB + 300 * MIB * share(s), 2 * HOUR_S)

    @pytest.mark.parametrize("period_s", [25, 70, 200, 333, 800, 2000, 5000])
    def test_the_heap_of_a_garbage_collector_is_not_growth(self, period_s):
        """Its first rise cannot be distinguished from a leak; later ones do not count as one."""
        saw = lambda s: 50 * MIB + s % period_s / period_s * 200 * MIB  # noqa: E731
        assert never_grows(saw, 4 * HOUR_S, after_s=period_s)

    def test_warm_up_is_not_growth(self):
        """A program that loads for a minute and then serves."""
        assert never_grows(lambda s: min(s, 55) * 20 * MIB, HOUR_S)

    @pytest.mark.parametrize("wave_s", [100, 1000, 3600])
    def test_waves_are_not_growth(self, wave_s):
        """Load that comes and goes, after it was seen once."""
        wave = lambda s: (300 + 200 * math.sin(2 * math.pi * s / wave_s)) * MIB  # noqa: E731
        assert never_grows(wave, 4 * HOUR_S, after_s=2 * wave_s)

    def test_noise_is_not_growth(self):
        """Hours of it, five times the least growth that counts."""
        noise = random.Random(7)
        assert never_grows(lambda s: 50 * MIB + noise.uniform(0, 5 * MIB), 8 * HOUR_S)

    def test_shrinking_is_not_growth(self):
        """Whatever it was before."""
        assert never_grows(lambda s: 5000 * MIB - s * MIB, HOUR_S)

    @settings(max_examples=50, deadline=None)
    @given(st.floats(0, 1 << 30), st.lists(st.floats(1, 700), min_size=1, max_size=40))
    def test_a_steady_process_never_grows(self, size, pauses):
        """However irregularly it is read."""
        watch, now_s = GrowthWatch(0.0, OPTIONS), 0.0
        for pause_s in pauses * 5:
            now_s += pause_s
            watch.add(now_s, int(size))
            assert watch.growth is None


def test_a_process_takes_little_memory():
    """Bounded, whatever happens: thousands are watched."""
    watch = GrowthWatch(0.0, OPTIONS)
    for n in range(1_000):
        watch.add(n * 23.0, n * MIB)
    parts = (getattr(watch, name) for name in GrowthWatch.__slots__ if name != "_options")
    assert sum(map(sys.getsizeof, parts)) < 1300


def test_short_windows_work_as_long_ones():
    """Seconds in place of minutes."""
    options = GrowthOptions(window_s=4.0, min_bytes=MIB, warmup_s=1.0)
    found_s = first_growth_s(lambda s: s * MIB, 20, interval_s=0.2, options=options)
    assert found_s is not None
    assert found_s <= 7


def test_readings_that_are_late_leave_the_verdict_as_it_was():
    """Late readings on a busy machine do not end growth; after a whole window without any, the state is
    unknown.
    """
    watch = GrowthWatch(0.0, OPTIONS)
    times_s = [n * 10.0 for n in range(50)] + [600.0, 700.0, 800.0]
    for time_s in times_s:
        watch.add(time_s, int(50 * MIB + time_s * MIB))
        assert watch.growth or time_s < 400
    watch.add(10_000.0, 10_050 * MIB)
    assert watch.growth is None
