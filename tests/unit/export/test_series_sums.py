"""Figures of several processes under one set of labels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.export.series_sums import SeriesReading, SeriesSums, Sums


class Prometheus:
    """What increase() makes of the samples of a counter: a decrease is a reset."""

    def __init__(self) -> None:
        self.total = 0.0
        self._last: float | None = None

    def scrape(self, value: float) -> None:
        if self._last is not None:
            self.total += value - self._last if value >= self._last else value
        self._last = value


def reading(count: float, age_s: float = 1.0, **changes) -> SeriesReading:
    return replace(SeriesReading((count,), (count,), age_s), **changes)


def a_sum() -> SeriesSums:
    return SeriesSums([sum], 1)


def update(made: SeriesSums, readings: dict[int, SeriesReading]) -> Sums:
    return made.update(["all"], {"all": readings}, readings)["all"]


@given(
    lives=st.lists(
        st.tuples(
            st.integers(1, 4), st.integers(0, 6), st.lists(st.integers(0, 100), min_size=1, max_size=6)
        ),
        max_size=12,
    )
)
def test_a_counter_tells_what_happened(lives):
    """Processes come and go, pids are reused: increase() equals their allocations, and nothing else."""
    ticks: dict[int, dict[int, SeriesReading]] = {}
    free_from: dict[int, int] = {}
    for number, (pid, begin, allocations) in enumerate(lives):
        begin = max(begin, free_from.get(pid, 0))
        for age in range(len(allocations)):
            # Of two that were seen once each, the later one has been traced for a shorter time.
            told = reading(sum(allocations[: age + 1]), age + 0.5 - number / 1000)
            ticks.setdefault(begin + age, {})[pid] = told
        free_from[pid] = begin + len(allocations)
    made, prometheus = a_sum(), Prometheus()
    prometheus.scrape(update(made, {}).counters[0])
    for tick in range(max(ticks, default=-1) + 1):
        prometheus.scrape(update(made, ticks.get(tick, {})).counters[0])
    assert prometheus.total == sum(sum(allocations) for _pid, _begin, allocations in lives)


def test_a_counter_does_not_fall_when_a_process_ends():
    """The gauge does."""
    made = a_sum()
    assert update(made, {1: reading(23), 2: reading(101)}) == Sums((124,), (124,))
    assert update(made, {1: reading(29, 2.0)}) == Sums((29,), (130,))
    assert update(made, {}) == Sums((0.0,), (130,))


def test_a_pid_that_is_used_again_is_another_process():
    """It has been traced for less time than before, also if it has allocated more already."""
    made = a_sum()
    update(made, {1: reading(23, 60.0)})
    assert update(made, {1: reading(101, 0.5)}).counters == (124,)


def test_what_another_daemon_counted_is_not_counted_again():
    """For an adopted process, only increases from then on count."""
    made = a_sum()
    assert update(made, {1: reading(1009, 60.0, adopted=True)}) == Sums((1009,), (0,))
    assert update(made, {1: reading(1013, 61.0, adopted=True)}) == Sums((1013,), (4,))


def test_a_process_that_moves_to_other_labels_is_counted_once():
    """The new series does not repeat what another series has counted."""
    made = a_sum()
    made.update(["a", "b"], {"a": {1: reading(23)}, "b": {2: reading(101)}}, {1, 2}, exclusive=True)
    now = made.update(["a", "b"], {"b": {1: reading(29, 2.0), 2: reading(101, 2.0)}}, {1, 2}, exclusive=True)
    assert now == {"a": Sums((0.0,), (23,)), "b": Sums((130,), (101,))}


def test_what_was_said_last_holds():
    """A site that is not among the largest just now keeps its figures while its process is there."""
    made = a_sum()
    made.update(["site"], {"site": {1: reading(23)}}, {1})
    assert made.update(["site"], {}, {1})["site"] == Sums((23,), (23,))
    assert made.update(["site"], {}, set())["site"] == Sums((0.0,), (23,))


def test_the_least_of_nothing_is_not_known():
    """A limit that no process has is omitted; unknown figures are not part of a sum."""
    made: SeriesSums = SeriesSums([sum, min], 0)
    told = {
        1: SeriesReading((23, None), (), 1.0),
        2: SeriesReading((None, 7), (), 1.0),
        3: SeriesReading((101, 5), (), 1.0),
    }
    assert update(made, told) == Sums((124, 5), ())
    assert update(made, {1: SeriesReading((None, None), (), 2.0)}) == Sums((None, None), ())
    assert update(made, {}) == Sums((0.0, None), ())
