"""Which series are exported: bounded, and without flapping."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.export.series_choice import Candidate, SeriesChoice

weights = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 12)), st.floats(0, 1e12), max_size=40)


def candidates(weights: dict[tuple[int, int], float]) -> dict[tuple[int, int], Candidate]:
    """Keys are (owner, number)."""
    return {key: Candidate(key[0], weight) for key, weight in weights.items()}


def of_one(**weights: float) -> dict[str, Candidate]:
    return {key: Candidate("owner", weight) for key, weight in weights.items()}


@given(
    ticks=st.lists(weights, max_size=12),
    per_owner=st.integers(0, 5),
    total=st.integers(0, 12),
    linger_s=st.integers(0, 6),
)
def test_there_is_never_more_than_room_for(ticks, per_owner, total, linger_s):
    """Whatever comes and goes: in all, and of each owner (twice as many, with what lingers)."""
    choice: SeriesChoice = SeriesChoice(per_owner=per_owner, total=total, linger_s=linger_s)
    for now_s, tick in enumerate(ticks):
        shown = choice.update(candidates(tick), now_s)
        assert len(shown) == len(set(shown)) <= total
        assert all(count <= 2 * per_owner for count in Counter(owner for owner, _ in shown).values())


@given(
    base=st.dictionaries(st.integers(0, 15), st.floats(1, 1e9), min_size=1),
    noise=st.lists(st.lists(st.floats(0.95, 1.05), min_size=7, max_size=7), max_size=5),
    per_owner=st.integers(1, 10),
)
def test_noise_changes_nothing(base, noise, per_owner):
    """Weights that change by a twentieth around a level leave the choice as it was after the first tick."""
    choice: SeriesChoice = SeriesChoice(per_owner=per_owner, total=1000, linger_s=0)
    shown = choice.update({key: Candidate(0, weight) for key, weight in base.items()}, 0)
    for now_s, factors in enumerate(noise):
        noisy = {key: Candidate(0, base[key] * factors[key % 7]) for key in base}
        # The first choice was made without noise: 1.05 / 0.95 is less than the margin.
        assert set(choice.update(noisy, now_s + 1)) == set(shown)


@given(ticks=st.lists(weights, min_size=1, max_size=12), linger_s=st.integers(1, 6))
def test_what_is_shown_stays_for_the_linger_time(ticks, linger_s):
    """With room enough, a series that was there is there until it was out for so long."""
    choice: SeriesChoice = SeriesChoice(per_owner=100, total=1000, linger_s=linger_s)
    last_seen: dict[object, int] = {}
    for now_s, tick in enumerate(ticks):
        shown = set(choice.update(candidates(tick), now_s))
        last_seen |= dict.fromkeys(tick, now_s)
        # A key is out from the tick on after which it was seen last.
        assert shown == {key for key, seen_s in last_seen.items() if now_s - seen_s - 1 < linger_s}


def test_a_newcomer_has_to_be_larger_by_a_quarter():
    """And then the one that gives way lingers."""
    choice: SeriesChoice = SeriesChoice(per_owner=2, total=10, linger_s=30)
    assert choice.update(of_one(a=200, b=80), 0) == ["a", "b"]
    assert choice.update(of_one(a=200, b=80, c=99), 1) == ["a", "b"]
    assert choice.update(of_one(a=200, b=80, c=101), 2) == ["a", "c", "b"]
    assert choice.update(of_one(a=200, b=80, c=101), 31) == ["a", "c", "b"]
    assert choice.update(of_one(a=200, b=80, c=101), 32) == ["a", "c"]


def test_what_lingers_gives_way_to_what_is_chosen():
    """Without room, no series lingers."""
    choice: SeriesChoice = SeriesChoice(per_owner=5, total=2, linger_s=30)
    choice.update(of_one(a=1), 0)
    assert choice.update(of_one(b=1), 1) == ["b", "a"]
    assert choice.update(of_one(b=1, c=1), 2) == ["b", "c"]
