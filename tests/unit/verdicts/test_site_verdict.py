"""Verdicts on simulated sites, whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from bench import simulated_sites as sites
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.model.verdict import SiteVerdict, Verdict
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.site_histories import SiteHistories
from bpfleakd.verdicts.site_verdict import Context, classify_sites

LEAKS = {
    "one block a second": sites.leak(1, 1000),
    "among two thousand": sites.mixed(sites.leak(1, 1000), sites.churn(2000, 0.001)),
    "a step every ten seconds": sites.steps(10),
    "a megabyte every eight seconds": sites.steps(8, blocks=1, size_bytes=1e6),
    "one block that grows": sites.growing_block(0.5),
    "beside a queue of ten seconds": sites.mixed(sites.leak(20), sites.queue(200, 10)),
    "beside blocks that live for three seconds": sites.mixed(sites.leak(20), sites.churn(500, 3)),
}
CLEAN = {
    "cache of 20 s": sites.cache(100, 20),
    "cache of 40 s": sites.cache(100, 40),
    "leak that stops": sites.stopping(50, 30),
    "queue of 10 s": sites.queue(200, 10),
    "queue of 30 s": sites.queue(50, 30),
    "LRU of 20 s": sites.lru(100, 20),
    "warm-up": sites.warm_up(3000, 15),
    "short lives": sites.churn(500, 0.01),
    "lives of 5 s": sites.churn(300, 5),
    "lives of 60 s": sites.sessions(100, 60),
    "start-up": sites.start_up(1000),
    "lives of 100 s, seen from their middle": sites.sessions(100, 100, attached_after_s=600),
    "LRU of 100 s, seen from its middle": sites.lru(100, 100, attached_after_s=600),
}


def verdicts(make: sites.Make, *at_s: float, seed: int = 23) -> list[SiteVerdict]:
    made = make(np.random.default_rng(seed), at_s[-1])
    return [of_site[0] for of_site in sites.classified([made], at_s)]


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_found_in_a_minute(name: str) -> None:
    """After 62 s every one is a leak, and it still is after three minutes."""
    for verdict in verdicts(LEAKS[name], 62.0, 180.0):
        assert verdict.verdict is Verdict.LEAK, verdict
        assert verdict.leak_bytes_per_s > 0
        assert verdict.confidence >= 0.5


@pytest.mark.parametrize(("factor", "at_s"), [(1.125, 120.0), (1.5, 600.0)])
def test_a_buffer_that_is_filled_for_ever_is_a_leak_after_some_steps(factor: float, at_s: float) -> None:
    """The larger the steps, the later."""
    for verdict in verdicts(sites.vector(10_000, factor), at_s, 3 * at_s):
        assert verdict.verdict is Verdict.LEAK, verdict
        assert verdict.leak_bytes_per_s == pytest.approx(10_000, rel=0.4)


def test_a_buffer_that_doubles_is_not_told_from_a_table_that_fills() -> None:
    for verdict in verdicts(sites.vector(10_000, 2.0), 120.0, 600.0, 1_800.0):
        assert verdict.verdict is Verdict.GROWING
        assert verdict.reason.endswith(" equal steps: too few to call a leak")


@pytest.mark.parametrize("seed", range(3))
def test_a_leak_that_begins_late_stays_one(seed: int) -> None:
    """Before it began all blocks of the site were freed at once: these are not old blocks of the leak."""
    make = sites.mixed(sites.churn(100, 0.01), sites.leak(50, from_s=180))
    early = verdicts(make, *np.arange(175.0, 226, 3), seed=seed)
    assert [verdict for verdict in early if verdict.verdict is Verdict.LEAK] == []
    for verdict in verdicts(make, *np.arange(250.0, 480, 5), seed=seed):
        assert verdict.verdict is Verdict.LEAK, verdict
        assert verdict.leak_bytes_per_s == pytest.approx(50 * 128, rel=0.1)


@pytest.mark.parametrize("are_counted", [True, False])
def test_no_window_begins_before_the_first_block(are_counted: bool) -> None:
    """Five steps since 100 s are too few to be called late; their rate is that since then."""
    made = at(101.0, 121.0, 141.0, 161.0, 181.0)(np.random.default_rng(23), 200.0)
    histories = _histories([made], 200.0)
    if not are_counted:
        histories = replace(histories, survivors_count=None, survivors_bytes=None)
    measured = persistence_of(histories)
    assert measured.persists[0]
    assert measured.window_s[0] <= 101
    assert measured.rate_bytes_per_s[0] == pytest.approx(5_000, rel=0.15)


def test_a_few_large_blocks_that_a_collection_freed_between_two_readings_are_no_leak() -> None:
    """The live figures are of before the collection, the survivors of after it: none of the old ones."""
    made = sites.steps(4, blocks=1, size_bytes=1e5)(np.random.default_rng(23), 62.0)
    histories = _histories([made], 62.0)
    assert histories.survivors_count is not None
    assert histories.survivors_bytes is not None
    assert classify_sites(persistence_of(histories), Context()).of(0).verdict is Verdict.LEAK
    is_old = (histories.ends_s < 50)[:, None]
    collected = replace(
        histories,
        survivors_count=np.where(is_old, 0.0, histories.survivors_count),
        survivors_bytes=np.where(is_old, 0.0, histories.survivors_bytes),
    )
    found = classify_sites(persistence_of(collected), Context()).of(0)
    assert found.verdict is Verdict.GROWING
    assert "old blocks are still being freed" in found.reason


@pytest.mark.parametrize("steps", [4, 5])
def test_two_bursts_are_not_steady_growth(steps: int) -> None:
    """Their median slope is 0 B/s. A third burst as long after makes a leak."""
    ends_s = np.array([10.0, 60.0, 110.0])
    bursts = at(*(ends_s[:, None] - np.arange(steps)).ravel())
    after_two = verdicts(bursts, *np.arange(56.0, 70.0))
    assert Verdict.LEAK not in {verdict.verdict for verdict in after_two}
    (after_three,) = verdicts(bursts, 114.0)
    assert after_three.verdict is Verdict.LEAK
    assert after_three.leak_bytes_per_s > 0


@pytest.mark.parametrize("name", CLEAN)
def test_what_is_clean_is_never_called_a_leak(name: str) -> None:
    """At no time within three minutes, looked at every ten seconds."""
    called = verdicts(CLEAN[name], *np.arange(10.0, 181, 10))
    assert [verdict for verdict in called if verdict.verdict is Verdict.LEAK] == []


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("cache of 40 s", Verdict.PLATEAU),
        ("leak that stops", Verdict.PLATEAU),
        ("queue of 10 s", Verdict.CHURN),
        ("short lives", Verdict.CHURN),
        ("start-up", Verdict.STEADY),
        ("lives of 60 s", Verdict.GROWING),
    ],
)
def test_what_it_is_instead(name: str, verdict: Verdict) -> None:
    """After a minute and a half each has the name that a person would give it."""
    (found,) = verdicts(CLEAN[name], 90.0)
    assert found.verdict is verdict, found


def test_a_silence_of_a_few_recorded_blocks_is_no_plateau() -> None:
    """A leak of 200 B/s sampled at 4 KiB has one block every 20 s: none for 40 s is common."""
    called = [
        verdict
        for seed in range(40)
        for verdict in verdicts(sites.sampled(sites.leak(2, 100), 4096), 60.0, 90.0, seed=seed)
    ]
    assert sum(verdict.verdict is Verdict.PLATEAU for verdict in called) <= 0.02 * len(called)


def test_a_burst_that_was_sampled_well_is_a_plateau_once_it_is_over() -> None:
    """Of 36 blocks a second for eight seconds one in 8 is recorded: another burst would have been seen."""
    make = sites.sampled(sites.stopping(36, 8, 500), 4096)
    for seed in range(20):
        (verdict,) = verdicts(make, 60.0, seed=seed)
        assert verdict.verdict is Verdict.PLATEAU, verdict


@pytest.mark.parametrize("time_constant_s", [30, 60, 90])
def test_what_fills_ever_more_slowly_is_never_called_a_leak(time_constant_s: float) -> None:
    """A cache of 60 MB that holds more and more of the requested keys: observed for ten minutes."""
    called = verdicts(sites.warm_up(30_000, time_constant_s, 2_000), *np.arange(20.0, 601, 20))
    assert [verdict for verdict in called if verdict.verdict is Verdict.LEAK] == []
    filling = next(one for one in called if one.verdict is Verdict.GROWING and "too early" not in one.reason)
    assert filling.reason.endswith(", but ever more slowly, as a cache fills")


@pytest.mark.parametrize(
    "make",
    [
        sites.warm_up(300_000, 150, 60),
        sites.zipf_cache(200_000, 2_000, attached_after_s=60, size_bytes=60),
        sites.zipf_cache(200_000, 2_000, size_bytes=60),
    ],
)
def test_a_table_that_fills_slowly_but_certainly_is_none_from_the_start(make: sites.Make) -> None:
    """Thousands of blocks show that growth slows down by a tenth within the first minute."""
    called = verdicts(make, 48.0, 52.0, 56.0, 60.0, 75.0, 90.0, 120.0, 180.0)
    assert [one for one in called if one.verdict is Verdict.LEAK] == []


@pytest.mark.parametrize(
    "make",
    [
        sites.zipf_cache(20_000, 100, 0.75, attached_after_s=170),
        sites.zipf_cache(100_000, 1_000),
        sites.zipf_cache(10_000, 50),
        sites.zipf_cache(10_000, 50, attached_after_s=60),
    ],
)
def test_a_part_of_a_filling_cache_looks_straight(make: sites.Make) -> None:
    """Keys by Zipf's law fill it forever, as a power of time: its last eighth is not a leak."""
    at_s = (240.0, 300.0, 450.0, 600.0)
    called = [one.verdict for seed in range(8) for one in verdicts(make, *at_s, seed=seed)]
    assert called.count(Verdict.LEAK) <= 0.1 * len(called)


@pytest.mark.parametrize("seed", range(4))
def test_a_leak_beside_a_cache_that_fills_is_found_when_that_is_full(seed: int) -> None:
    """The rate has fallen, and falls no more."""
    make = sites.mixed(sites.leak(10, 500), sites.warm_up(3_000, 30, 500))
    *_filling, full = verdicts(make, 60.0, 120.0, 300.0, seed=seed)
    assert full.verdict is Verdict.LEAK, full
    assert full.leak_bytes_per_s == pytest.approx(5_000, rel=0.15)


def test_a_cache_while_it_fills_is_growing() -> None:
    """Until it stops it cannot be told from a leak; then it is a plateau, and the reason says since when."""
    filling, full = verdicts(sites.cache(100, 40), 30.0, 80.0)
    assert filling.verdict is Verdict.GROWING
    assert filling.reason.endswith("in 30s: too early to tell it from a cache")
    assert full.verdict is Verdict.PLATEAU
    assert "then stopped" in full.reason


def test_what_grows_steadily_but_little_says_so() -> None:
    """It is neither irregular nor recent; a log of limited length looks the same."""
    little, much = verdicts(sites.leak(4, 64), 90.0, 300.0)
    assert little.verdict is Verdict.GROWING
    assert little.reason.endswith("too little to tell it from a list of limited length")
    assert much.verdict is Verdict.LEAK


def test_a_leak_that_stops_after_it_was_called_one() -> None:
    """The verdict is withdrawn."""
    leaking, stopped = verdicts(sites.stopping(20, 100), 90.0, 300.0)
    assert (leaking.verdict, stopped.verdict) == (Verdict.LEAK, Verdict.PLATEAU)


def test_the_rate_is_the_leaks() -> None:
    """100 blocks of 64 bytes a second among others are 6,400 bytes a second, give or take a tenth."""
    (found,) = verdicts(sites.mixed(sites.leak(100, 64), sites.churn(2000, 0.2, size_bytes=64)), 120.0)
    assert found.leak_bytes_per_s == pytest.approx(6_400, rel=0.1)


def test_the_first_seconds_are_unknown() -> None:
    """Less than ten seconds are too little for any verdict."""
    (found,) = verdicts(sites.leak(1000), 9.0)
    assert found == SiteVerdict(Verdict.UNKNOWN, 0.0, "observed for only 9s", 0.0)


def test_a_sampled_leak_needs_more_time() -> None:
    """With one of eight blocks recorded, a leak of 10 blocks a second is still found in two minutes."""
    (found,) = verdicts(sites.sampled(sites.leak(10, 64), 512), 120.0)
    assert found.verdict is Verdict.LEAK
    assert found.leak_bytes_per_s == pytest.approx(640, rel=0.4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("per_s", [0.2, 1, 5])
def test_a_log_of_limited_length_is_no_leak_while_it_fills(per_s: float, seed: int) -> None:
    """The slow log of redis: 128 entries, of three blocks each, of which the oldest goes for the newest."""
    made = sites.mixed(*[sites.lru(per_s, 128 / per_s, size_bytes=60)] * 3)
    called = verdicts(made, *np.arange(20.0, 601, 20), seed=seed)
    assert Verdict.LEAK not in [found.verdict for found in called]


@pytest.mark.parametrize("interval_bytes", [1 << 16, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_a_silence_is_none_where_hardly_anything_is_recorded(interval_bytes: int, seed: int) -> None:
    """A leak of 5 KB/s that was seen exactly for a minute, and then coarsely."""
    made = sites.resampled(sites.leak(50, 100), [(0, 0), (60, interval_bytes)])
    found = verdicts(made, 59.0, 70.0, 80.0, 90.0, 100.0, 110.0, seed=seed)
    assert found[0].verdict is Verdict.LEAK
    assert {each.verdict for each in found} <= {Verdict.LEAK, Verdict.GROWING}


def at(*born_s: float, count: int = 100) -> sites.Make:
    """So many blocks at each of these times, for good."""
    return lambda _random, _until_s: sites.Blocks.of(np.repeat(born_s, count), np.inf, 1000.0)


@pytest.mark.parametrize(
    ("now_s", "ago_s", "when"),
    [
        (600.0, 175.0, "at least 2m28s ago:"),
        (600.0, 10.0, "at once:"),
        (40_000.0, 10_900.0, "at least 1h51m ago:"),
    ],
)
def test_one_rise_says_when_it_was(now_s: float, ago_s: float, when: str) -> None:
    """After a long observation, hours are less than half of it: they are stated, not called recent."""
    (found,) = verdicts(at(now_s - ago_s), now_s)
    assert found.verdict is Verdict.UNKNOWN
    assert found.reason.endswith(f"{when} that does not tell whether more will follow")


def test_a_rise_of_which_too_little_is_recorded() -> None:
    """Long after it, coarse sampling is the reason, not the time."""
    made = sites.resampled(at(100.0), [(0, 1 << 14)])
    (found,) = verdicts(made, 600.0)
    assert found.verdict is Verdict.UNKNOWN
    assert found.reason.endswith("too few blocks are recorded to tell whether it goes on")


@pytest.mark.parametrize("seed", range(4))
def test_a_silence_is_one_where_enough_would_be_recorded(seed: int) -> None:
    """It stopped when sampling became coarser: 90 blocks would have been recorded since."""
    made = sites.resampled(sites.stopping(50, 60, 1000), [(0, 0), (60, 1 << 16)])
    assert verdicts(made, 180.0, seed=seed)[0].verdict is Verdict.PLATEAU


@pytest.mark.parametrize(
    "intervals", [[(0, 1 << 14)], [(0, 0), (60, 1 << 14)], [(0, 1 << 14), (60, 1 << 12)]]
)
def test_sampled_sessions_are_no_leaks(intervals: list[tuple[float, float]]) -> None:
    """Too few recorded blocks to know whether old ones stay: nothing is claimed."""
    made = sites.resampled(sites.sessions(100, 60), intervals)
    at_s = (70.0, 90.0, 120.0, 180.0)
    found = [each.verdict for seed in range(10) for each in verdicts(made, *at_s, seed=seed)]
    assert found.count(Verdict.LEAK) <= 1


def test_the_few_that_are_forgotten_are_found_among_many_in_flight() -> None:
    """One of 50 blocks is kept forever, the others live for eight seconds."""
    made = sites.mixed(sites.leak(5), sites.churn(250, 8))
    for seed in range(5):
        (found,) = verdicts(made, 200.0, seed=seed)
        assert found.verdict is Verdict.LEAK, found


def test_frees_of_older_blocks_say_nothing_about_mappings() -> None:
    """As many frees as there are new blocks may mean that these replace older ones, but not mappings."""
    histories = _histories([sites.leak(5)(np.random.default_rng(23), 90.0)], 90.0)
    replaced = Context(replaced_count=1000)
    mappings = replace(histories, is_heap=np.zeros(1, bool))
    assert classify_sites(persistence_of(histories), replaced).of(0).verdict is Verdict.GROWING
    assert classify_sites(persistence_of(mappings), replaced).of(0).verdict is Verdict.LEAK


def between_kills(*makes: sites.Make, seed: int) -> list[SiteVerdict]:
    """Verdicts on the first site just after each gap, of a daemon that is down for half of the time."""
    random = np.random.default_rng(seed)
    read_at_s = sites.read_between_kills(random, 260.0, (8.0, 30.0))
    made = [make(random, read_at_s[-1]) for make in makes]
    after_gaps_s = read_at_s[1:][np.diff(read_at_s) > 1.5]
    at_s = np.union1d(after_gaps_s[after_gaps_s > 60], read_at_s[-1:]).tolist()
    return [first for first, *_others in sites.classified(made, at_s, read_at_s=read_at_s)]


@pytest.mark.parametrize("seed", range(14))
def test_a_table_that_is_replaced_is_no_leak_however_rarely_it_is_read(seed: int) -> None:
    """Once all older entries are replaced, new ones replace those of the same site, also in the gaps."""
    tables = sites.full_table(6_000, 50, 300), sites.full_table(6_000, 50, 200)
    assert not [one for one in between_kills(*tables, seed=seed) if one.verdict is Verdict.LEAK]


@pytest.mark.parametrize("make", [sites.leak(5), sites.mixed(sites.leak(5), sites.churn(300, 5))])
def test_a_leak_is_found_although_half_of_the_time_is_not_read(make: sites.Make) -> None:
    """In four minutes, whatever gaps there are."""
    for seed in range(10):
        found = between_kills(make, seed=seed)
        assert any(one.verdict is Verdict.LEAK for one in found), found


def test_what_other_sites_seem_to_gain_is_no_older_memory() -> None:
    """A small leak beside a large one, both sampled: the error of the large one explains the small one."""
    made = [sites.leak(rate)(np.random.default_rng(23), 90.0) for rate in (5, 500)]
    measured = persistence_of(_histories(made, 90.0))
    for error, small in ((0.0, Verdict.GROWING), (1_000.0**2, Verdict.LEAK)):
        found = classify_sites(measured, Context(replaced_count=1_000, growth_variance=error))
        assert [found.of(site).verdict for site in (0, 1)] == [small, Verdict.LEAK]
    found = classify_sites(measured, Context(replaced_count=1_000, churn_variance=1_000.0**2))
    assert found.of(0).verdict is Verdict.LEAK
    # The older memory that the large one replaces exceeds the error of the small one.
    found = classify_sites(measured, Context(replaced_count=15_000, growth_variance=1_000.0**2))
    assert found.of(1).verdict is Verdict.GROWING


def test_a_full_table_says_nothing() -> None:
    """Once blocks are not recorded any more, what stands still is unknown; leaks are less sure."""
    made = [make(np.random.default_rng(23), 90.0) for make in (sites.cache(100, 30), sites.leak(5))]
    histories = _histories(made, 90.0)
    measured = persistence_of(histories)
    whole = classify_sites(measured, Context())
    lossy = classify_sites(measured, Context(lost_blocks=23))
    assert [whole.of(0).verdict, whole.of(1).verdict] == [Verdict.PLATEAU, Verdict.LEAK]
    assert [lossy.of(0).verdict, lossy.of(1).verdict] == [Verdict.UNKNOWN, Verdict.LEAK]
    assert lossy.of(1).confidence < whole.of(1).confidence
    assert lossy.of(1).reason.endswith("; blocks were not recorded")


def test_without_a_census_leaks_are_found_but_less_sure() -> None:
    """The envelope is enough where nothing is in flight."""
    histories = _histories([sites.leak(5)(np.random.default_rng(23), 90.0)], 90.0)
    blind = SiteHistories(
        histories.ends_s,
        histories.low_bytes,
        histories.low_count,
        histories.born_count,
        histories.live_bytes,
        histories.live_count,
    )
    seeing = classify_sites(persistence_of(histories), Context()).of(0)
    found = classify_sites(persistence_of(blind), Context(survivors_known=False)).of(0)
    assert found.verdict is Verdict.LEAK
    assert found.confidence < seeing.confidence


def test_sites_are_judged_alike_whoever_is_beside_them() -> None:
    """All together get the verdicts that each has alone."""
    random = np.random.default_rng(23)
    made = [make(random, 90.0) for make in (*LEAKS.values(), *list(CLEAN.values())[:-2])]
    (together,) = sites.classified(made, [90.0])
    assert together == [sites.classified([one], [90.0])[0][0] for one in made]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), per_s=st.floats(6, 200), size_bytes=st.integers(1, 100_000))
def test_any_steady_leak_is_found(seed: int, per_s: float, size_bytes: int) -> None:
    """Whatever its rate and size: two minutes are enough; or three, if it seems to slow down by chance."""
    found = verdicts(sites.leak(per_s, size_bytes), 120.0, 180.0, seed=seed)
    assert Verdict.LEAK in [one.verdict for one in found]


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), per_s=st.floats(10, 2000), period_s=st.floats(2, 25))
def test_no_queue_is_a_leak(seed: int, per_s: float, period_s: float) -> None:
    """Whatever its period, once it has been emptied twice."""
    for found in verdicts(sites.queue(per_s, period_s), 60.0, 90.0, seed=seed):
        assert found.verdict is not Verdict.LEAK


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 1 << 40), min_size=3, max_size=3), min_size=1, max_size=40))
def test_any_history_has_a_verdict(rows: list[list[int]]) -> None:
    """Numbers that no program could produce make no difference to that."""
    matrix = np.array(rows, np.float64)
    ends_s = np.cumsum(np.arange(1, len(rows) + 1.0))
    histories = SiteHistories(
        ends_s, matrix, matrix[:, ::-1], matrix, matrix[-1], matrix[-1, ::-1], matrix, matrix
    )
    classification = classify_sites(persistence_of(histories), Context(replaced_count=23, lost_frees=1))
    for site in range(3):
        found = classification.of(site)
        assert 0 <= found.confidence <= 1
        assert found.leak_bytes_per_s >= 0
        assert found.reason


def _histories(made: list[sites.Blocks], now_s: float) -> SiteHistories:
    (histories,) = sites.histories_at(made, [now_s])
    return histories


@pytest.mark.parametrize("emptied_share", [0.25, 0.5, 0.75, 0.9])
def test_a_queue_that_is_emptied_too_slowly_is_a_leak(emptied_share: float) -> None:
    """After a while: it may catch up. Its oldest blocks are freed, but ever later."""
    early, *later = verdicts(sites.backlog(100, emptied_share), 120.0, 240.0, 600.0)
    assert early.verdict is Verdict.GROWING
    for one in later:
        assert one.verdict is Verdict.LEAK
        assert "ever later" in one.reason
        assert one.leak_bytes_per_s == pytest.approx(300 * 100 * (1 - emptied_share), rel=0.2)


def test_a_backlog_is_found_in_a_sample() -> None:
    """Of 300 blocks a second, of which 50 are never reached, one in 110 is recorded."""
    made = sites.sampled(sites.backlog(300, 5 / 6), 32 << 10)
    called = [verdicts(made, 600.0, seed=seed)[0].verdict for seed in range(20)]
    assert called.count(Verdict.LEAK) >= 18


@pytest.mark.parametrize(
    "make",
    [
        sites.lru(100, 20, size_bytes=300),
        sites.lru(300, 20, size_bytes=300),
        sites.lru(30, 60, size_bytes=300),
        sites.sessions(100, 20, size_bytes=300),
        sites.sessions(30, 60, size_bytes=300),
    ],
)
def test_few_recorded_blocks_that_are_replaced_are_no_leak(make: sites.Make) -> None:
    """Some 20 recorded blocks live: their number rises by five or ten by chance."""
    called = [
        verdict
        for seed in range(40)
        for verdict in verdicts(sites.sampled(make, 32 << 10), 240.0, 300.0, 420.0, 600.0, seed=seed)
    ]
    assert [verdict for verdict in called if verdict.verdict is Verdict.LEAK] == []


def test_few_blocks_of_which_the_oldest_are_freed_are_no_leak() -> None:
    """A block of 64 KiB every five seconds that lives for a minute: twelve live."""
    called = [
        verdict
        for seed in range(40)
        for verdict in verdicts(sites.lru(0.2, 60, size_bytes=1 << 16), 120.0, 180.0, seed=seed)
    ]
    assert sum(verdict.verdict is Verdict.LEAK for verdict in called) <= 0.03 * len(called)


def test_a_few_recorded_blocks_of_long_ago_are_a_plateau() -> None:
    """Of a leak that ended after 25 s a handful is recorded: at its rate, more would have been since."""
    made = sites.sampled(sites.stopping(20, 25, 333), 32 << 10)
    called = [verdicts(made, 600.0, seed=seed)[0].verdict for seed in range(40)]
    assert Verdict.LEAK not in called
    assert called.count(Verdict.PLATEAU) >= 35


@pytest.mark.parametrize(
    "make", [sites.backlog(100, 1.1), sites.sessions(100, 60), sites.sessions(100, 300), sites.lru(100, 100)]
)
def test_lives_that_stay_as_long_as_they_are_make_no_leak(make: sites.Make) -> None:
    assert Verdict.LEAK not in {one.verdict for one in verdicts(make, 150.0, 180.0, 240.0, 300.0, 600.0)}
