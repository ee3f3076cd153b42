"""A leak that was found stays one until there is evidence against it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from bench import simulated_sites as sites

from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.seen_leaks import SeenLeaks
from bpfleakd.verdicts.site_verdict import Context, classify_sites

ROW = 7


def known_after(ends_s: np.ndarray, intervals_bytes: np.ndarray) -> bool:
    """Whether a leak of 50 blocks of 100 bytes a second, seen for a minute, is known without any growth."""
    leaks, sites_by_row = SeenLeaks(), np.full(ROW + 1, -1)
    sites_by_row[ROW] = 0
    for make in (sites.leak(50, 100), sites.stopping(50, 1, 100)):
        (histories,) = sites.histories_at([make(np.random.default_rng(23), 60.0)], [60.0])
        found = classify_sites(persistence_of(histories), Context())
        leaks.settle(found, sites_by_row, ends_s, intervals_bytes)
    return ROW in leaks.of([ROW]) and bool(found.leaks[0])


@pytest.mark.parametrize(
    ("interval_bytes", "after_s", "is_unseen"),
    [(1 << 20, 60, True), (1 << 20, 600, True), (1 << 14, 2, True), (1 << 14, 60, False), (0, 60, False)],
)
def test_until_something_would_have_been_seen(interval_bytes: int, after_s: int, is_unseen: bool) -> None:
    """Sampling became coarser after a minute."""
    ends_s = np.arange(1.0, 61 + after_s)
    intervals_bytes = np.where(ends_s > 60, interval_bytes, 0).astype(np.float64)
    assert known_after(ends_s, intervals_bytes) is is_unseen


def test_where_sampling_is_as_fine_as_before_silence_is_evidence() -> None:
    """However little is recorded: nothing has changed that could hide the leak."""
    ends_s = np.arange(1.0, 121.0)
    assert not known_after(ends_s, np.full(120, float(1 << 20)))
    # It was coarser at first: that hides nothing now.
    assert not known_after(ends_s, np.where(ends_s < 10, 1 << 22, 1 << 20).astype(np.float64))


def bursts(gap_s: float, blocks: int, size_bytes: float) -> sites.Make:
    """So many blocks at once, at random times."""

    def make(random: np.random.Generator, until_s: float) -> sites.Blocks:
        times_s = np.cumsum(random.exponential(gap_s, int(4 * until_s / gap_s)))
        return sites.Blocks.of(np.repeat(times_s[times_s < until_s], blocks), np.inf, size_bytes)

    return make


def since_found(make: sites.Make, seed: int) -> list[SiteVerdict]:
    """The verdicts every 15 s, from the first leak on."""
    at_s = list(np.arange(45.0, 601, 15))
    found = [one for (one,) in sites.classified([make(np.random.default_rng(seed), at_s[-1])], at_s)]
    return found[[one.verdict for one in found].index(Verdict.LEAK) :]


@pytest.mark.parametrize(
    "make", [bursts(10, 100, 500), bursts(30, 100, 500), sites.steps(60), sites.leak(1 / 32, 16_384)]
)
def test_a_leak_in_bursts_stays_one(make: sites.Make) -> None:
    """It rises evenly at some moments only, and there is no evidence against it at the others."""
    found = [one.verdict for seed in range(4) for one in since_found(make, seed)]
    assert found.count(Verdict.LEAK) >= 0.9 * len(found)


def test_a_leak_that_is_kept_says_why() -> None:
    found = [one for seed in range(4) for one in since_found(bursts(30, 100, 500), seed)]
    kept = [one for one in found if one.reason.endswith("nothing shows that this has ended")]
    assert kept
    assert all(one.leak_bytes_per_s > 0 and 0.5 <= one.confidence <= 1 for one in kept)


@pytest.mark.parametrize(
    ("make", "verdict"),
    [
        (sites.stopping(20, 100), Verdict.PLATEAU),
        (sites.lru(20, 100), Verdict.PLATEAU),
        (sites.queue(50, 90), Verdict.CHURN),
        (sites.queue(50, 400), Verdict.CHURN),
    ],
)
def test_what_is_no_leak_after_all_is_not_kept(make: sites.Make, verdict: Verdict) -> None:
    """It stopped, or its old blocks went: the verdict is withdrawn."""
    assert since_found(make, 0)[-1].verdict is verdict


def under_load(share: Callable[[np.ndarray], np.ndarray], life_s: float) -> sites.Make:
    """50 blocks a second, times a share of it that depends on time."""

    def make(random: np.random.Generator, until_s: float) -> sites.Blocks:
        times_s = random.uniform(0, until_s, random.poisson(50 * until_s))
        is_born = random.random(len(times_s)) < share(times_s)
        return sites.Blocks.of(times_s[is_born], life_s, 256)

    return make


def falls_to(rest: float) -> Callable[[np.ndarray], np.ndarray]:
    """From 1 to this share within five minutes, then even."""
    return lambda times_s: 1 - (1 - rest) * np.minimum(times_s / 300, 1)


def verdicts_beside(rest: float, others: float) -> list[Verdict]:
    """On a leak that becomes rarer, beside blocks in flight that do; from a minute to six."""
    random = np.random.default_rng(23)
    leak, flight = under_load(falls_to(rest), np.inf), under_load(falls_to(others), 0.01)
    of_both = sites.classified([leak(random, 360.0), flight(random, 360.0)], list(np.arange(60.0, 361, 15)))
    return [of_leak.verdict for of_leak, _of_flight in of_both]


def test_a_leak_under_a_load_that_falls_stays_one() -> None:
    """What the process allocates beside it shows the load."""
    assert set(verdicts_beside(0.5, 0.5)) == {Verdict.LEAK}
    assert verdicts_beside(0.5, 1.0)[-1] is Verdict.GROWING


def test_a_load_explains_a_fall_to_a_quarter() -> None:
    """A cache that allocates nothing but what it has not yet looks the same."""
    assert verdicts_beside(0.02, 0.02)[-1] is not Verdict.LEAK


def on_a_busy_machine(make: sites.Make, seed: int) -> sites.Blocks:
    """One second in five, the whole process hardly gets anywhere."""
    random = np.random.default_rng(7)
    speed = np.where(
        random.random(1200) < 0.2, random.uniform(0.05, 0.4, 1200), random.uniform(0.8, 1.2, 1200)
    )
    ends_s = np.cumsum(1 / speed)
    blocks = make(np.random.default_rng(seed), 900.0)
    born_s = np.interp(blocks.born_s, np.arange(1, 1201), ends_s)
    return sites.Blocks.of(born_s, blocks.life_s, blocks.size_bytes)


@pytest.mark.parametrize(
    ("make", "is_leak"),
    [(sites.warm_up(6000, 60), False), (sites.leak(50, 256), True), (sites.leak(5, 2560), True)],
)
def test_a_cache_is_told_from_a_leak_on_a_busy_machine(make: sites.Make, is_leak: bool) -> None:
    """By what it gains for what else the process allocates."""
    at_s = [60.0, 90.0, 120.0, 180.0, 300.0]
    for seed in range(4):
        both = [on_a_busy_machine(one, seed) for one in (make, sites.churn(400, 0.01))]
        found = [of_site.verdict is Verdict.LEAK for of_site, _of_churn in sites.classified(both, at_s)]
        assert set(found) == {is_leak}


def test_an_even_leak_while_the_load_rises() -> None:
    """It falls behind the load, and time shows that it is even."""
    leak, flight = (
        sites.leak(50, 256),
        under_load(lambda times_s: (1 + 2 * np.minimum(times_s / 120, 1)) / 3, 0.01),
    )
    random = np.random.default_rng(23)
    found = sites.classified([leak(random, 300.0), flight(random, 300.0)], list(np.arange(60.0, 301, 15)))
    assert {of_leak.verdict for of_leak, _of_flight in found} == {Verdict.LEAK}
