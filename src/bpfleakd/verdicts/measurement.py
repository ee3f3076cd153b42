"""Measurements of call sites for their verdicts: how retained memory grows, and whether old blocks die.

Everything is computed for many sites at once. Windows end before the time that the site's own past makes
uncertain (see `envelope`), begin after the start-up, and are halved down to the horizon. The longest one in
which the site grows like a leak is used, so the number of tests per site grows with the logarithm of time.
Since new growth must last for an eighth of the whole history to count as a leak, a busy minute does not alarm
daemons that watch for days.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import (
    CELLS,
    Matrix,
    Rise,
    Row,
    first_rise_s,
    grid_of,
    last_rise_s,
    log_p_none,
    longest_excursion_s,
    lower_envelope,
    rise_of,
    values_at,
)
from bpfleakd.verdicts.exposure import Exposure, constant_exposure, exposure_of
from bpfleakd.verdicts.persistence import Persistence, nothing_found
from bpfleakd.verdicts.rises import (
    LOAD_MIN,
    LOG_ALPHA,
    THIN_THIRD,
    falls_much,
    filling,
    gain,
    has_stopped,
    is_even,
    is_more_than_a_list,
    noise,
    slows_down,
    speeds_up,
    theil_sen,
)
from bpfleakd.verdicts.site_histories import Flags, SiteHistories, chosen
from bpfleakd.verdicts.survival import Survival

# A filling cache cannot be distinguished from a leak until it stops. This is how long growth must last to be
# called a leak, unless configured: a mere convention.
LEAK_AFTER_S = 45.0
# Allocations at the beginning are start-up: for at least this long, or this share of the recording.
START_UP_S = 5.0
_START_UP_SHARE = 0.1
_WINDOWS = 4
# Evidence: this many effective steps with enough blocks, or a few more steps with enough bytes.
_STEPS_MIN = 3.5
_RISES_MIN = 3
STEPS_ENOUGH = 5.0
_BLOCKS_ENOUGH = 20.0
_BYTES_ENOUGH = 16 << 10
_SURVIVORS_ENOUGH = 20.0
# If old blocks are less than this share of the gain, blocks are being replaced.
_REPLACED_SHARE = 0.3
# If a site frees its old blocks, its envelope gains less than this share of the new blocks' survivors.
_GAIN_OF_SURVIVORS = 0.5
# Poisson's standard errors of what lives that a backlog must gain.
_FAR_FROM_CHANCE = 4.0
# The envelope is as good as the live figures for sites that fell back within this share of the time.
_CALM_SHARE = 0.25
# Growth below this multiple of the noise does not count.
_NOISE_FACTOR = 3.0
_FEW = 3.0
# So little of what is gained later is next to nothing.
_ALMOST_NOTHING = 0.05
# If at most this share of the old blocks is left, and as much of the oldest, those left do not belong to the
# blocks that die.
_FEW_SURVIVE = 0.1
# If more blocks explain this share of the gain in bytes, blocks do not merely get larger.
_ADDED_SHARE = 0.5
# A recorded block that represents at least this many belongs to a sample.
_SAMPLED_WEIGHT = 1.5
# The last third of a window begins at this edge of its cells.
_LATELY = CELLS - CELLS // 3
# Blocks born just now have not had time to die: those of this many seconds, and of one such part of the
# recording.
_YOUNG_S = 3.0
# How many times as long a queue must grow as anything else to be a leak: it may catch up.
_BACKLOGS = 3.0
_YOUNG_SHARES = (0.05, 0.25)


def first_leak_s(leak_after_s: float) -> float:
    """How long after the attach growth since then may first be called a leak: after the start-up, too."""
    # One more second, since figures are read once a second.
    return max(leak_after_s + START_UP_S, leak_after_s / (1 - _START_UP_SHARE)) + 1.0


def persistence_of(histories: SiteHistories, leak_after_s: float = LEAK_AFTER_S) -> Persistence:
    """Measure sites; growth that lasts `leak_after_s` may be a leak. Needs at least one bin of time."""
    return _Measurement(histories, leak_after_s).result()


class _Measurement:
    """One measurement of several sites."""

    def __init__(self, histories: SiteHistories, leak_after_s: float) -> None:
        self._histories = histories
        self._leak_after_s = leak_after_s
        self._ends_s = histories.ends_s
        self._firsts_s = histories.ends_s if histories.firsts_s is None else histories.firsts_s
        self._now_s = float(histories.ends_s[-1])
        self._sites = histories.low_bytes.shape[1]
        self._weight = np.ones(self._sites) if histories.weight is None else histories.weight
        self._bytes = lower_envelope(histories.low_bytes)
        self._count = lower_envelope(histories.low_count)
        self._exposure = self._exposed()
        self._seen_bytes = self._exposure.seen(self._bytes)
        self._seen_count = self._exposure.seen(self._count)
        self._born = np.cumsum(histories.born_count, axis=0)
        widths_s = np.diff(self._ends_s, prepend=0.0)
        self._excursion_s = np.maximum(
            longest_excursion_s(histories.low_bytes, self._bytes, widths_s),
            longest_excursion_s(histories.low_count, self._count, widths_s),
        )
        # The minimum of many readings is lower than that of few, so even a fluctuating figure's envelope
        # rises a little.
        self._least_bytes = _NOISE_FACTOR * noise(histories.low_bytes)
        self._least_count = _NOISE_FACTOR * noise(histories.low_count)
        self._start_up_s = np.maximum(START_UP_S, self._exposure.after_share(_START_UP_SHARE))
        self._first_birth_s = self._first_births_s()
        # For bytes and blocks: how their rates fall in a longer window than this one (rises.filling).
        self._falls_per_s = np.zeros((2, self._sites))
        # Whether the site slows down, in the last window looked at, so much that it cannot be a leak; and
        # whether its old blocks die.
        self.is_cache = np.zeros(self._sites, bool)
        self.dying = np.zeros(self._sites, bool)
        self._survival = None
        if histories.survivors_count is not None and histories.survivors_bytes is not None:
            self._survival = Survival(
                self._ends_s,
                self._born,
                np.cumsum(histories.survivors_count, axis=0),
                np.cumsum(histories.survivors_bytes, axis=0),
                self._weight,
                self._exposure.weighted(histories.survivors_count),
            )

    def _first_births_s(self) -> Row:
        """When the bin begins in which each site's first block was born; 0 if it had some from before."""
        starts_s = np.concatenate([[0.0], self._ends_s[:-1]])
        first = np.argmax(self._histories.born_count > 0, axis=0)
        had_some = self._histories.low_bytes[0] > 0
        first_s: Row = np.where(had_some, 0.0, starts_s[first])
        return first_s

    @property
    def _block_bytes(self) -> Row:
        """The mean size of each site's live blocks."""
        mean_bytes: Row = self._histories.live_bytes / np.maximum(self._histories.live_count, 1.0)
        return mean_bytes

    def _exposed(self) -> Exposure:
        """How densely each site was recorded in each bin."""
        histories = self._histories
        if (
            histories.intervals_bytes is None
            or (histories.intervals_bytes == histories.intervals_bytes[0]).all()
        ):
            return constant_exposure(self._ends_s, self._weight)
        exposure = exposure_of(self._ends_s, histories.intervals_bytes, self._block_bytes)
        if histories.is_heap is not None:
            # Mappings are never sampled.
            exposure = exposure.where(histories.is_heap, constant_exposure(self._ends_s, self._weight))
        return exposure

    def result(self) -> Persistence:
        overall = self._since_first_seconds()
        persists, slows, is_cache = (np.zeros(self._sites, bool) for _flags in range(3))
        found = nothing_found(self._sites)
        # Most sites never retain anything and need no test.
        promising = np.flatnonzero(self._is_promising())
        if len(promising):
            part = _Measurement(chosen(self._histories, promising), self._leak_after_s)
            for index, (does_persist, look) in enumerate(part.looks()):
                if not index:
                    # In the longest window, whatever the site does in it.
                    found["dies"][promising], is_cache[promising] = part.dying, part.is_cache
                # The youngest blocks are in flight and still die. If few survive, the two kinds can be told
                # apart.
                is_of_few = look["by_survivors"] & (look["old_share"] <= _FEW_SURVIVE) & ~look["dies"]
                new = does_persist & (~persists[promising] | (is_of_few & found["dies"][promising]))
                persists[promising[new]] = True
                for name, values in look.items():
                    found[name][promising[new]] = values[new]
            slows[promising] = (part._falls_per_s > 0).any(axis=0)
        newborn, collections = self._histories.born_count > 0, self._histories.collections
        last_birth = len(self._ends_s) - 1 - np.argmax(newborn[::-1], axis=0)
        two_thirds_s = np.full((1, self._sites), self._now_s * 2 / 3)
        return Persistence(
            observed_s=self._now_s,
            leak_after_s=self._leak_after_s,
            is_heap=np.ones(self._sites, bool)
            if self._histories.is_heap is None
            else self._histories.is_heap,
            live_bytes=self._histories.live_bytes,
            live_count=self._histories.live_count,
            born_count=self._born[-1],
            born_lately=self._born[-1] - values_at(self._born, self._ends_s, two_thirds_s, from_zero=True)[0],
            quiet_s=np.where(newborn.any(axis=0), self._now_s - self._ends_s[last_birth], self._now_s),
            excursion_s=self._excursion_s,
            persists=persists,
            slows=slows,
            is_cache=is_cache,
            collections=np.full(self._sites, np.inf if collections is None else float(collections)),
            **found,
            **overall,
        )

    def _is_promising(self) -> Flags:
        """Whether a site has risen often enough for any window to show it."""
        rises = (np.diff(self._bytes, axis=0) > 0).sum(axis=0)
        if self._histories.survivors_count is not None:
            rises = np.maximum(rises, (self._histories.survivors_count > 0).sum(axis=0))
        enough: Flags = rises >= _RISES_MIN
        return enough

    def looks(self) -> Iterator[tuple[Flags, dict[str, NDArray[Any]]]]:
        """Yield windows from the longest to the shortest: first the envelopes, then the survivors.

        Survivors of shorter windows than those of a leak show nothing.
        """
        end_s = self._now_s - self._excursion_s
        for halving in range(_WINDOWS):
            yield self._look(end_s - (end_s - self._start_up_s) / 2**halving, end_s)
        if self._survival is None:
            return
        for halving in range(_WINDOWS):
            for young_share in _YOUNG_SHARES:
                end_s = np.full(self._sites, self._now_s - _YOUNG_S - young_share * self._now_s)
                start_s = end_s - (end_s - self._start_up_s) / 2**halving
                if (end_s - start_s >= self._leak_after_s).any():
                    yield self._look_at_survivors(self._survival, start_s, end_s)

    def _look(self, start_s: Row, end_s: Row) -> tuple[Flags, dict[str, NDArray[Any]]]:
        grid = self._exposure.grid(start_s, np.maximum(end_s, start_s + 1e-3))
        values, (of_bytes, of_count) = self._over(grid)
        recorded_count = of_count.gain
        if self._exposure.chance is not None:
            of_bytes, of_count = (
                replace(rise, gain=gain(curve))
                for rise, curve in zip((of_bytes, of_count), values, strict=True)
            )
        has_blocks = recorded_count >= _BLOCKS_ENOUGH * self._exposure.weight
        is_more = (of_bytes.gain > self._least_bytes, of_count.gain > self._least_count)
        rises = [self._rises(curve, start_s, end_s) for curve in (self._bytes, self._count)]
        evident = []
        for rise, number, enough in zip((of_bytes, of_count), rises, is_more, strict=True):
            steps = np.minimum(rise.steps, number)
            is_much = (steps >= STEPS_ENOUGH) & (of_bytes.gain >= _BYTES_ENOUGH)
            is_evident = (steps >= _STEPS_MIN) & (is_much | has_blocks)
            evident.append(is_evident & enough & is_even(rise))
        for proof, fills in zip(evident, self._fills(grid, values, recorded_count), strict=True):
            proof &= ~fills
        by_blocks = evident[1] | self._adds_blocks(*values)
        dies, freed_later = np.zeros(self._sites, bool), np.zeros(self._sites, bool)
        old_share = np.full(self._sites, np.nan)
        began_s, risen = np.maximum(start_s, self._first_birth_s), grid
        if self._survival is not None:
            began_s = np.maximum(began_s, self._began_s(values[1], grid, of_count.gain))
        if (began_s > start_s).any():
            risen = self._exposure.grid(began_s, np.maximum(end_s, began_s + 1e-3))
        if self._survival is not None:
            fate, gained = self._survival.fate(began_s, end_s), of_count.gain
            # A single block that grows by realloc always looks young.
            self.dying = fate.dies & has_blocks
            dies = fate.dies | (gained < _GAIN_OF_SURVIVORS * fate.count)
            older = gained * (1 - of_count.last_third)
            dies |= (older >= _BLOCKS_ENOUGH) & (fate.old_count < _REPLACED_SHARE * older)
            # A collection may free them all after the curve was read; a few blocks are no share, but none is.
            dies |= (older >= _FEW * self._exposure.weight) & (fate.old_count == 0)
            # A backlog grows all the time, so few steps do not excuse a last third without gain; and by more
            # than the number of live blocks varies by chance.
            by_chance = _FAR_FROM_CHANCE * np.sqrt(self._histories.live_count * self._exposure.weight)
            is_backlog = dies & evident[1] & (of_count.last_third >= THIN_THIRD) & (gained >= by_chance)
            freed_later = self._freed_later(self._survival, is_backlog, began_s, end_s)
            self.dying, dies, old_share = self.dying & ~freed_later, dies & ~freed_later, fate.old_share
        window_s, rose_bytes = end_s - began_s, self._as_it_rose(self._bytes, risen)
        persists = (window_s >= self._leak_after_s) & (evident[0] | evident[1]) & (of_bytes.gain > 0)
        persists &= is_more_than_a_list(of_bytes.gain, of_count.gain)
        return persists, {
            "by_survivors": np.zeros(self._sites, bool),
            "by_blocks": by_blocks,
            # A single block that grows by realloc always looks young.
            "dies": dies & by_blocks,
            "window_s": window_s,
            "window_steps": np.maximum(of_bytes.steps * evident[0], of_count.steps * evident[1]),
            "gained_bytes": gain(rose_bytes),
            "gained_count": gain(self._as_it_rose(self._count, risen)),
            "gained_lately_count": of_count.gain * of_count.last_third,
            "rate_bytes_per_s": theil_sen(risen, rose_bytes),
            "old_share": old_share,
            "freed_later": freed_later,
        }

    def _adds_blocks(self, of_bytes: Matrix, of_count: Matrix) -> Flags:
        """Whether most bytes are gained when the number of blocks rises: blocks do not merely get larger."""
        gained, more_blocks = np.diff(of_bytes, axis=0), np.diff(of_count, axis=0)
        added = np.minimum(gained, more_blocks * self._block_bytes).sum(axis=0)
        adds: Flags = added >= _ADDED_SHARE * gained.sum(axis=0)
        return adds

    def _fills(self, grid: Matrix, values: Sequence[Matrix], recorded_count: Row) -> list[Flags]:
        """Whether bytes and blocks still fill like a cache over a grid; notes which sites are caches."""
        times_s, by_load = self._load_times_s(grid), None
        blocks, fills = recorded_count / self._exposure.weight, []
        self.is_cache = np.zeros(self._sites, bool)
        for index, (whole, curve) in enumerate(zip((self._bytes, self._count), values, strict=True)):
            if times_s is not None:
                # The least in a bin is what lived at its first reading, if the site only grows.
                by_load = values_at(whole, self._firsts_s, times_s, from_zero=False)
            found = filling(grid, curve, blocks, self._falls_per_s[index], by_load)
            self._falls_per_s[index] = found.falls_per_s
            if found.fall.any():
                self.is_cache |= falls_much(found, grid, self._by_others(grid))
            fills.append(found.still_fills)
        return fills

    def _freed_later(self, survival: Survival, dying: Flags, start_s: Row, end_s: Row) -> Flags:
        """Which sites lose old blocks ever later, for long enough to be more than a busy minute."""
        freed_later = np.zeros(self._sites, bool)
        for site in np.flatnonzero(dying & (end_s - start_s >= _BACKLOGS * self._leak_after_s)).tolist():
            middle_s, low_count = (start_s[site] + end_s[site]) / 2, self._histories.low_count[:, site]
            freed_later[site] = survival.lengthens(site, float(middle_s), self._firsts_s, low_count)
        return freed_later

    def _load_times_s(self, grid: Matrix) -> Matrix | None:
        """When the process has allocated equal shares of what it does over a grid; None if unknown."""
        allocated = self._histories.allocated_count
        if allocated is None or self._exposure.chance is not None:
            return None
        first, last = np.interp(grid[[0, -1]], self._ends_s, allocated)
        if (last - first).min() < LOAD_MIN:
            return None
        times_s: Matrix = np.interp(grid_of(first, last), allocated, self._ends_s)
        return times_s

    def _by_others(self, grid: Matrix) -> Matrix:
        """The blocks that the other sites of the process have allocated, over a grid; 0.0 if unknown."""
        allocated = self._histories.allocated_count
        if allocated is None:
            return np.zeros_like(grid)
        return values_at(allocated[:, None] - self._born, self._ends_s, grid, from_zero=True)

    def _began_s(self, values: Matrix, grid: Matrix, gained_count: Row) -> Row:
        """When what rises over a grid began to, if the site had almost nothing live before; else its start.

        Blocks that were born, and died at once, before a leak began are not old blocks of the leak. Those of
        a queue that was drained are. Where blocks are sampled, the first to be recorded is no beginning.
        """
        first_s = first_rise_s(values, grid)
        is_before = (self._ends_s[:, None] > grid[0]) & (self._ends_s[:, None] <= first_s)
        height = np.max((self._histories.low_count - self._count) * is_before, axis=0)
        # Chance decides whether anything is in the first part of the window.
        is_late = (first_s > grid[1]) & (self._weight < _SAMPLED_WEIGHT)
        is_late &= height <= _ALMOST_NOTHING * gained_count
        began_s: Row = np.where(is_late, first_s, grid[0])
        return began_s

    def _over(self, grid: Matrix) -> tuple[list[Matrix], tuple[Rise, Rise]]:
        """Bytes and blocks over a grid, and how they rise in what the finest sampling recorded.

        Their silence is in shares of the steps that would have been seen.
        """
        values = [
            values_at(curve, self._ends_s, grid, from_zero=False) for curve in (self._bytes, self._count)
        ]
        if self._exposure.chance is None:
            return values, (rise_of(values[0]), rise_of(values[1]))
        of_bytes, of_count = (
            rise_of(values_at(curve, self._ends_s, grid, from_zero=False))
            for curve in (self._seen_bytes, self._seen_count)
        )
        recorded_count = of_count.gain / self._exposure.weight
        of_bytes, of_count = (
            replace(
                rise,
                silence=self._exposure.silence(
                    recorded_count / np.maximum(rise.steps, 1.0), grid[0], last_rise_s(rise, grid), grid[-1]
                ),
            )
            for rise in (of_bytes, of_count)
        )
        return values, (of_bytes, of_count)

    def _as_it_rose(self, curve: Matrix, grid: Matrix) -> Matrix:
        """A curve's values placed where it rose: of these are the rates and gains that are shown.

        A rising curve is least at the beginning of a bin: minima placed at the ends of old, wide bins make it
        too steep.
        """
        starts_s = np.concatenate([[0.0], self._ends_s[:-1]])
        return values_at(curve, starts_s, grid, from_zero=False)

    def _rises(self, curve: Matrix, start_s: Row, end_s: Row) -> Row:
        """In how many bins of its window each site rises: one step in a wide bin fills several cells."""
        ends_s = self._ends_s[1:, None]
        rises = (np.diff(curve, axis=0) > 0) & (ends_s > start_s) & (ends_s <= end_s + 1e-6)
        count: Row = rises.sum(axis=0).astype(np.float64)
        return count

    def _look_at_survivors(
        self, survival: Survival, start_s: Row, end_s: Row
    ) -> tuple[Flags, dict[str, NDArray[Any]]]:
        grid = grid_of(start_s, np.maximum(end_s, start_s + 1e-3))
        survived, survived_bytes = (
            values_at(curve, self._ends_s, grid, from_zero=True)
            for curve in (survival.survived, survival.survived_bytes)
        )
        rise, of_bytes = rise_of(survived), rise_of(survived_bytes)
        fate = survival.fate(start_s, end_s)
        window_s = np.maximum(end_s - np.maximum(start_s, self._first_birth_s), 1e-3)
        per_s = rise.gain / window_s
        persists = (window_s >= self._leak_after_s) & is_even(rise) & (rise.steps >= STEPS_ENOUGH)
        # Blocks are counted one by one here, so shares need no test.
        persists &= (rise.gain >= _SURVIVORS_ENOUGH * self._weight) & (rise.first_third >= THIN_THIRD)
        persists &= ~speeds_up(rise) & self._may_grow_by(per_s) & self._goes_on(survival, per_s, end_s)
        times_s, by_load = self._load_times_s(grid), None
        if times_s is not None:
            by_load = values_at(survival.survived, self._ends_s, times_s, from_zero=True)
        blocks = rise.gain / self._weight
        persists &= ~filling(grid, survived, blocks, self._falls_per_s[1], by_load).still_fills
        gains, net_lately_count = self._net_gains(grid, survived)
        persists &= ~self._has_slowed(start_s) & gains
        persists &= is_more_than_a_list(of_bytes.gain, rise.gain)
        return persists, {
            "by_survivors": np.ones(self._sites, bool),
            "by_blocks": np.ones(self._sites, bool),
            "dies": fate.dies,
            "window_s": window_s,
            "window_steps": rise.steps,
            "gained_bytes": of_bytes.gain,
            "gained_count": rise.gain,
            "gained_lately_count": np.minimum(rise.gain * rise.last_third, net_lately_count),
            "rate_bytes_per_s": of_bytes.gain / window_s,
            "old_share": fate.old_share,
            "freed_later": np.zeros(self._sites, bool),
        }

    def _may_grow_by(self, per_s: Row) -> Flags:
        """Whether the live blocks, however noisy, are consistent with this growth."""
        after = self._ends_s > max(START_UP_S, _START_UP_SHARE * self._now_s)
        if after.sum() < 6:
            return np.ones(self._sites, bool)
        low, times_s = self._histories.low_count[after], self._ends_s[after]
        part = len(times_s) // 3
        change = np.median(low[-part:], axis=0) - np.median(low[:part], axis=0)
        elapsed_s = times_s[-part:].mean() - times_s[:part].mean()
        grows: Flags = change >= 0.5 * per_s * elapsed_s - 3 * noise(low) / np.sqrt(part)
        return grows

    def _goes_on(self, survival: Survival, per_s: Row, end_s: Row) -> Flags:
        """Whether young blocks exist too, and survive at least as often as older ones so far."""
        young = survival.between(end_s, np.full(self._sites, self._now_s))
        expected = per_s * (self._now_s - end_s)
        goes_on: Flags = young + 3 * np.sqrt(expected * self._exposure.last_weight) >= 0.5 * expected
        return goes_on

    def _net_gains(self, grid: Matrix, survived: Matrix) -> tuple[Flags, Row]:
        """Whether sites gain as many blocks as survive: in the window, in its last third, and after it, each
        until now; and the gain since the last third began. Sites that fluctuate too much are not judged.

        Where they do not, older blocks die. After a time without readings nothing else shows it: blocks that
        survive from that time are known by their age, those that died in it are not.
        """
        is_calm = self._excursion_s <= _CALM_SHARE * self._now_s
        # The youngest still die: as many as before should stay.
        per_s = (survived[-1] - survived[0]) / np.maximum(grid[-1] - grid[0], 1e-3)
        after = per_s * (self._now_s - grid[-1])

        def gained_since(cell: int) -> Row:
            before = values_at(self._seen_count, self._ends_s, grid[cell : cell + 1], from_zero=False)[0]
            gained: Row = self._seen_count[-1] - before
            return gained

        gains = np.ones(self._sites, bool)
        for cell in (0, _LATELY, CELLS):
            expected = survived[-1] - survived[cell] + after
            chance = self._least_count + 3 * np.sqrt(expected * self._exposure.last_weight)
            gains &= gained_since(cell) + chance >= _GAIN_OF_SURVIVORS * expected
        return gains | ~is_calm, np.where(is_calm, gained_since(_LATELY), np.inf)

    def _has_slowed(self, start_s: Row) -> Flags:
        """Whether sites that are calm enough to judge have slowed down since `start_s`.

        A program that drops its oldest blocks first has only young ones, all of which survive.
        """
        end_s = np.maximum(self._now_s - self._excursion_s, start_s + 1e-3)
        grid = self._exposure.grid(start_s, end_s)
        if self._exposure.chance is None:
            rise = rise_of(values_at(self._count, self._ends_s, grid, from_zero=False))
        else:
            _values, (_of_bytes, rise) = self._over(grid)
        is_calm = self._excursion_s <= _CALM_SHARE * self._now_s
        return is_calm & (rise.gain > 0) & (has_stopped(rise) | slows_down(rise))

    def _since_first_seconds(self) -> dict[str, NDArray[Any]]:
        """How sites grew since the first seconds of their process."""
        end_s = np.maximum(self._now_s - self._excursion_s, 0.0)
        start_s = np.minimum(START_UP_S, end_s)
        window_s = np.maximum(end_s - start_s, 1e-3)
        grid = self._exposure.grid(start_s, start_s + window_s)
        values, (of_bytes, of_count) = self._over(grid)
        gained_bytes, gained_count = map(gain, values)
        is_more = gained_bytes > self._least_bytes
        stays = is_more
        if self._survival is not None:
            lived = self._survival.between(start_s, end_s)
            stays = stays & ((gained_count < _FEW) | (lived >= _REPLACED_SHARE * gained_count))
        # For sampled sites, a silence is evidence only if some of as many blocks as before would certainly
        # have been recorded in it.
        is_known = log_p_none(of_count.gain / self._exposure.weight, of_bytes.silence) < LOG_ALPHA
        is_known |= self._weight < _SAMPLED_WEIGHT
        stopped = (of_bytes.log_p_silence < LOG_ALPHA) | (is_known & has_stopped(of_bytes))
        seen = of_bytes
        if self._exposure.chance is not None:
            seen = rise_of(values_at(self._seen_bytes, self._ends_s, grid, from_zero=False))
        silence_s = self._now_s - last_rise_s(seen, grid)
        steps = np.maximum(of_bytes.steps, of_count.steps)
        return {
            "grows": stays & ~stopped,
            "stopped": is_more & stopped,
            "grown_bytes": gain(self._as_it_rose(self._bytes, grid)),
            "grown_s": window_s,
            "steps": steps,
            "silence_s": silence_s,
            "unseen_s": np.where(~stopped & self._has_thinned(steps, silence_s), silence_s, 0.0),
        }

    def _has_thinned(self, steps: Row, silence_s: Row) -> Flags:
        """Whether a silence is no evidence because little is recorded now, not because it is short."""
        if self._exposure.chance is None:
            return np.zeros(self._sites, bool)
        share = silence_s / max(self._now_s, 1e-3)
        has_thinned: Flags = log_p_none(steps, share) < LOG_ALPHA
        return has_thinned
