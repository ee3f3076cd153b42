"""Simulated call sites: blocks with times of birth and death, read once a second and judged.

Pure: no kernel, no clock. The caller passes the random generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bpfleakd.model.verdict import SiteVerdict
from bpfleakd.table.gaps import bins_in_gaps, births_in_gaps, live_in_gaps
from bpfleakd.table.timeline import Timeline
from bpfleakd.verdicts.measurement import persistence_of
from bpfleakd.verdicts.seen_leaks import SeenLeaks
from bpfleakd.verdicts.site_histories import SiteHistories
from bpfleakd.verdicts.site_verdict import Context, classify_sites

_FOR_EVER_S = 1e9
_NS_PER_S = 1_000_000_000
# Without readings for longer there was no daemon.
_GAP_NS = 1_500_000_000

Random = np.random.Generator
Make = Callable[[Random, float], "Blocks"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of one site. Blocks born before 0 are from before the attach: only their frees are seen.

    `intervals` are the sampling intervals by the time (s) from which each applies, in bytes.
    """

    born_s: NDArray[np.float64]
    life_s: NDArray[np.float64]
    size_bytes: NDArray[np.float64]
    weight: NDArray[np.float64]
    intervals: tuple[tuple[float, float], ...] = ()

    @staticmethod
    def of(born_s: Iterable[float], life_s: float | NDArray, size_bytes: float | NDArray) -> Blocks:
        """In order of birth."""
        born = np.asarray(list(born_s) if not isinstance(born_s, np.ndarray) else born_s, np.float64)
        order = np.argsort(born, kind="stable")
        lives, sizes = (np.broadcast_to(each, born.shape).astype(np.float64) for each in (life_s, size_bytes))
        return Blocks(born[order], lives[order], sizes[order], np.ones(len(born)))


def leak(per_s: float, size_bytes: float = 128, from_s: float = 0) -> Make:
    """Blocks at random times that are never freed."""
    return lambda random, until_s: Blocks.of(
        _poisson(random, per_s, from_s, until_s), _FOR_EVER_S, size_bytes
    )


def stopping(per_s: float, stop_s: float, size_bytes: float = 512) -> Make:
    """A cache that fills, or a leak that stops."""
    return lambda random, until_s: Blocks.of(
        _poisson(random, per_s, 0, min(stop_s, until_s)), _FOR_EVER_S, size_bytes
    )


cache = stopping


def steps(interval_s: float, blocks: int = 100, size_bytes: float = 1000) -> Make:
    """This many blocks at once, repeatedly, never freed."""

    def make(random: Random, until_s: float) -> Blocks:
        times_s = np.arange(random.uniform(0, interval_s), until_s, interval_s)
        return Blocks.of(np.repeat(times_s, blocks), _FOR_EVER_S, size_bytes)

    return make


def growing_block(interval_s: float, more_bytes: float = 4096) -> Make:
    """One block that is repeatedly enlarged."""

    def make(random: Random, until_s: float) -> Blocks:
        times_s = np.arange(random.uniform(0, interval_s), until_s + 2 * interval_s, interval_s)
        return Blocks.of(times_s, interval_s, more_bytes * np.arange(1, len(times_s) + 1))

    return make


def vector(bytes_per_s: float, factor: float, first_bytes: float = 4096) -> Make:
    """A buffer that is filled evenly; whenever it is full it becomes `factor` times as large."""

    def make(_random: Random, until_s: float) -> Blocks:
        count = int(np.ceil(np.log(2 * until_s * bytes_per_s / first_bytes) / np.log(factor)))
        sizes_bytes = first_bytes * factor ** np.arange(count + 1)
        full_s = sizes_bytes / bytes_per_s
        return Blocks.of(np.concatenate([[0.0], full_s[:-1]]), np.diff(full_s, prepend=0.0), sizes_bytes)

    return make


def sessions(per_s: float, mean_life_s: float, attached_after_s: float = 0, size_bytes: float = 500) -> Make:
    """Blocks that live for a random time."""

    def make(random: Random, until_s: float) -> Blocks:
        born_s = _poisson(random, per_s, -attached_after_s, until_s)
        return Blocks.of(born_s, random.exponential(mean_life_s, len(born_s)), size_bytes)

    return make


churn = sessions


def lru(per_s: float, life_s: float, attached_after_s: float = 0, size_bytes: float = 500) -> Make:
    """A cache that drops its oldest entry for each new one."""
    return lambda random, until_s: Blocks.of(
        _poisson(random, per_s, -attached_after_s, until_s), life_s, size_bytes
    )


def full_table(entries: int, per_s: float, size_bytes: float = 500) -> Make:
    """A table that was full before the attach; each new entry replaces the oldest. The machine is busy: the
    program gets between a fifth and all of the time, other in each second.
    """

    def make(random: Random, until_s: float) -> Blocks:
        pace = np.clip(random.normal(0.8, 0.25, int(until_s) + 1), 0.2, 1.0)
        made = np.concatenate([[0.0], np.cumsum(pace * per_s)])
        born_s = np.interp(np.arange(1, int(made[-1]) + 1), made, np.arange(len(made)))
        every_s = np.concatenate([np.full(entries, -1.0), born_s])
        died_s = np.concatenate([born_s, np.full(entries, _FOR_EVER_S)])
        return Blocks(every_s, died_s - every_s, np.full(len(every_s), size_bytes), np.ones(len(every_s)))

    return make


def queue(per_s: float, period_s: float, size_bytes: float = 500) -> Make:
    """Blocks that pile up and are all freed at the end of each period."""

    def make(random: Random, until_s: float) -> Blocks:
        phase_s = random.uniform(0, period_s)
        born_s = _poisson(random, per_s, 0, until_s)
        return Blocks.of(born_s, period_s - (born_s + phase_s) % period_s, size_bytes)

    return make


def backlog(per_s: float, emptied_share: float, size_bytes: float = 300) -> Make:
    """A queue from which this share of what comes in is taken out, the oldest first, at even pauses."""

    def make(random: Random, until_s: float) -> Blocks:
        born_s = np.sort(_poisson(random, per_s, 0, until_s))
        pause_s = 1 / (emptied_share * per_s)
        freed_s = np.maximum.accumulate(born_s - pause_s * np.arange(len(born_s)))
        return Blocks.of(born_s, freed_s + pause_s * np.arange(1, len(born_s) + 1) - born_s, size_bytes)

    return make


def warm_up(blocks: int, time_constant_s: float, size_bytes: float = 500) -> Make:
    """Blocks that stay, fewer and fewer of them."""
    return lambda random, until_s: Blocks.of(
        random.exponential(time_constant_s, blocks), _FOR_EVER_S, size_bytes
    )


def zipf_cache(
    keys: int, per_s: float, exponent: float = 1.0, attached_after_s: float = 0, size_bytes: float = 500
) -> Make:
    """An unlimited cache: the k-th of this many keys is requested k^-exponent times as often as the first;
    each is kept from its first request on.
    """
    shares = np.arange(1, keys + 1) ** -exponent
    per_key_s = per_s * shares / shares.sum()

    def make(random: Random, until_s: float) -> Blocks:
        born_s = random.exponential(1 / per_key_s) - attached_after_s
        return Blocks.of(born_s[(born_s > 0) & (born_s < until_s)], _FOR_EVER_S, size_bytes)

    return make


def start_up(blocks: int, size_bytes: float = 1000) -> Make:
    """Blocks allocated in the first second that stay."""
    return lambda random, until_s: Blocks.of(random.uniform(0, 1, blocks), _FOR_EVER_S, size_bytes)


def mixed(*makes: Make) -> Make:
    """Several kinds of blocks from one site."""

    def make(random: Random, until_s: float) -> Blocks:
        parts = [each(random, until_s) for each in makes]
        born_s = np.concatenate([part.born_s for part in parts])
        lives, sizes = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("life_s", "size_bytes")
        )
        return Blocks.of(born_s, lives, sizes)

    return make


def sampled(make: Make, mean_bytes: float) -> Make:
    """Only a sample is seen: a block of n bytes with probability 1 - exp(-n / mean_bytes)."""

    def thinned(random: Random, until_s: float) -> Blocks:
        blocks = make(random, until_s)
        chance = -np.expm1(-blocks.size_bytes / mean_bytes)
        seen = random.random(len(chance)) < chance
        return Blocks(blocks.born_s[seen], blocks.life_s[seen], blocks.size_bytes[seen], 1 / chance[seen])

    return thinned


def resampled(make: Make, changes: Sequence[tuple[float, float]]) -> Make:
    """A sample with this interval in bytes from each of these times on; 0: every block is seen."""

    def thinned(random: Random, until_s: float) -> Blocks:
        blocks = make(random, until_s)
        froms_s, intervals = np.array(changes).T
        interval = intervals[np.maximum(np.searchsorted(froms_s, blocks.born_s, side="right") - 1, 0)]
        chance = -np.expm1(-blocks.size_bytes / np.maximum(interval, 1e-3))
        seen = random.random(len(chance)) < chance
        kept = Blocks(blocks.born_s[seen], blocks.life_s[seen], blocks.size_bytes[seen], 1 / chance[seen])
        return replace(kept, intervals=tuple(changes))

    return thinned


def classified(
    sites: Sequence[Blocks],
    at_s: Sequence[float],
    *,
    are_alone: bool = False,
    read_at_s: NDArray[np.float64] | None = None,
) -> list[list[SiteVerdict]]:
    """The verdicts on sites of one process at each of these times, in whole seconds and rising.

    A leak found at one of them stays known at the next. If sites `are_alone`, each is of a process that
    allocates nothing else. `read_at_s` are all times of readings, `at_s` among them; None: every second.
    """
    read_at_s = np.arange(1.0, at_s[-1] + 1) if read_at_s is None else read_at_s
    is_sampled = any((site.weight != 1).any() for site in sites)
    verdicts, leaks = [], SeenLeaks()
    for now_s, histories in zip(at_s, histories_at(sites, at_s, read_at_s), strict=True):
        if are_alone:
            histories = structs.replace(histories, allocated_count=None)
        # In a sample, frees of unknown blocks prove nothing.
        replaced = 0 if is_sampled else sum(_replaced(site, read_at_s, now_s) for site in sites)
        classification = classify_sites(persistence_of(histories), Context(replaced_count=replaced))
        intervals_bytes = histories.intervals_bytes
        if intervals_bytes is None:
            intervals_bytes = np.zeros(len(histories.ends_s))
        leaks.settle(classification, np.arange(len(sites)), histories.ends_s, intervals_bytes)
        verdicts.append([classification.of(site) for site in range(len(sites))])
    return verdicts


def histories_at(
    sites: Sequence[Blocks], at_s: Sequence[float], read_at_s: NDArray[np.float64] | None = None
) -> Iterator[SiteHistories]:
    """The histories of sites at each of these times, which are read at `read_at_s` (None: every second)."""
    read_at_s = np.arange(1.0, at_s[-1] + 1) if read_at_s is None else read_at_s
    readings = [_read(site, read_at_s) for site in sites]
    live_bytes, live_count, allocated_count = (np.stack(each, axis=1) for each in zip(*readings, strict=True))
    timeline, rows = Timeline(0), np.arange(len(sites))
    gaps_ns: list[tuple[int, int]] = []
    for now_s, *reading in zip(read_at_s, live_bytes, live_count, allocated_count, strict=True):
        now_ns, last_ns = round(now_s * _NS_PER_S), int(timeline.edges_ns[-1])
        if now_ns - last_ns > _GAP_NS:
            timeline.leave_gap(now_ns)
            gaps_ns.append((last_ns, now_ns))
        timeline.update(now_ns, rows, *reading)
        if now_s in at_s:
            yield _histories(sites, timeline, gaps_ns, reading[0], reading[1], now_s)


def read_between_kills(random: Random, until_s: float, down_s: tuple[float, float]) -> NDArray[np.float64]:
    """The times of readings of a daemon that is killed every 20 s, and takes so long to start again."""
    starts_s = np.arange(1.0, until_s, 20.0)
    times_s = [np.arange(start_s + random.uniform(*down_s), start_s + 20.0) for start_s in starts_s]
    return np.concatenate([[1.0], *times_s])


def _histories(
    sites: Sequence[Blocks],
    timeline: Timeline,
    gaps_ns: list[tuple[int, int]],
    live_bytes: NDArray[np.int64],
    live_count: NDArray[np.int64],
    now_s: float,
) -> SiteHistories:
    columns = timeline.columns(np.arange(len(sites)))
    edges_s = timeline.edges_ns[1:-1] / _NS_PER_S
    survivors = [_survivors(site, edges_s, now_s) for site in sites]
    survivors_count = np.stack([count for count, _ in survivors], axis=1)
    survivors_bytes = np.stack([size for _, size in survivors], axis=1)
    gaps = bins_in_gaps(timeline.edges_ns, gaps_ns)
    return SiteHistories(
        columns.ends_s,
        live_in_gaps(columns.low_bytes, survivors_bytes, gaps),
        live_in_gaps(columns.low_count, survivors_count, gaps),
        births_in_gaps(columns.born_count, survivors_count, gaps, timeline.edges_ns),
        live_bytes.astype(np.float64),
        live_count.astype(np.float64),
        survivors_count,
        survivors_bytes,
        np.array([site.weight.mean() if len(site.weight) else 1.0 for site in sites]),
        intervals_bytes=_intervals_bytes(sites[0], columns.ends_s),
        allocated_count=np.cumsum(columns.all_born_count),
        firsts_s=columns.firsts_s,
    )


def _intervals_bytes(site: Blocks, ends_s: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """The coarsest interval in each bin; None if it never changed."""
    if len(site.intervals) < 2:
        return None
    froms_s, intervals = np.array(site.intervals).T
    at_end = np.maximum(np.searchsorted(froms_s, ends_s, side="left") - 1, 0)
    at_start = np.concatenate([[0], at_end[:-1]])
    return np.array([intervals[first : last + 1].max() for first, last in zip(at_start, at_end, strict=True)])


def _read(site: Blocks, times_s: NDArray[np.float64]) -> tuple[NDArray[np.int64], ...]:
    seen = (site.born_s > 0) & (site.born_s <= times_s[-1])
    births, weight = np.searchsorted(times_s, site.born_s[seen]), site.weight[seen]
    deaths = np.searchsorted(times_s, (site.born_s + site.life_s)[seen])
    sizes = site.size_bytes[seen] * weight

    def summed(at: NDArray, what: NDArray) -> NDArray:
        return np.cumsum(np.bincount(at, what, len(times_s) + 1)[: len(times_s)])

    born = summed(births, weight)
    live = summed(births, sizes) - summed(deaths, sizes), born - summed(deaths, weight), born
    return tuple(np.rint(each).astype(np.int64) for each in live)


def _survivors(site: Blocks, edges_s: NDArray, now_s: float) -> tuple[NDArray, NDArray]:
    alive = (site.born_s > 0) & (site.born_s <= now_s) & (site.born_s + site.life_s > now_s)
    stretches = np.searchsorted(edges_s, site.born_s[alive])
    weight = site.weight[alive]
    return (
        np.bincount(stretches, weight, len(edges_s) + 1),
        np.bincount(stretches, weight * site.size_bytes[alive], len(edges_s) + 1),
    )


def _replaced(site: Blocks, read_at_s: NDArray[np.float64], now_s: float) -> int:
    died_s = (site.born_s + site.life_s)[site.born_s <= 0]
    lately_s = read_at_s[read_at_s <= now_s * 2 / 3].max(initial=0.0)
    return int(((died_s > lately_s) & (died_s <= now_s)).sum())


def _poisson(random: Random, per_s: float, from_s: float, until_s: float) -> NDArray[np.float64]:
    return random.uniform(from_s, until_s, random.poisson(per_s * (until_s - from_s)))
