"""Whether old blocks stay: how many of the blocks born in each part of a window are live.

For a leak, the live share of the blocks born long ago is the share of all blocks that leaks, whenever they
were born: the curve of survival by age is flat, above zero. Where lives are merely long, blocks keep dying at
the same pace (a constant hazard): the older, the fewer.

A queue that is filled faster than it is emptied also loses its old blocks, but ever later. If lives were as
they are now, more blocks would have been live earlier than there were: their number then is the sum of all
births before, each times the share of blocks that now reach its age at that time.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import Matrix, Row, values_at

# 95 % of a normal distribution lie below this.
NORMAL_95 = 1.645
# Survival falls with age if less than this share of the middle third's survival is left in the oldest, with
# 95 % confidence; or if it is so much less that it must not count as a leak even if it may be chance.
_SAME_SHARE = 0.9
_MUCH_LESS = 0.6
# If a smaller share of the oldest third lives, it may be dying at the constant pace that leaves that share.
_MOST = 0.8
# Lives lengthen if by those of now so many more blocks would have been live earlier, and by so many standard
# errors of a count more.
_LENGTHEN_SHARE, _LENGTHEN_T = 0.1, 4.0


class Fate(Struct, frozen=True):
    """What becomes of blocks born in a window: one figure per site.

    `dies` says whether they keep dying. `old_share` is the live share of those born in its first third (NaN:
    none were born), `old_count` the number of live ones born in the first two thirds, `count` that of all.
    """

    dies: NDArray[np.bool_]
    old_share: Row
    old_count: Row
    count: Row


class Survival(Struct, frozen=True):
    """The births and survivors of sites, as sums up to the end of each bin; `weight` as in SiteHistories.

    `weighted` is the same sum as `survived`, with survivors times the blocks that a recorded one of their bin
    represented; None if that was always `weight`.
    """

    ends_s: Row
    born: Matrix
    survived: Matrix
    survived_bytes: Matrix
    weight: Row
    weighted: Matrix | None = None

    def between(self, start_s: Row, end_s: Row) -> Row:
        """The number of live blocks that were born between two times."""
        edges_s = np.stack([start_s, end_s])
        living: Row = np.diff(values_at(self.survived, self.ends_s, edges_s, from_zero=True), axis=0)[0]
        return living

    def fate(self, start_s: Row, end_s: Row) -> Fate:
        """The fate of the blocks born in a window of each site.

        Compares its thirds by birth: the first with the second, and the first with the last unless deaths
        become rarer with age. Differences of logarithms of shares are normal with the binomial variance (the
        delta method).
        """
        born, lived, weight = self._thirds(start_s, end_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.minimum(lived / born, 1.0)
            logarithms = np.log(shares)
            variances = weight * (1 - shares) / lived
            late, early = logarithms[1] - logarithms[0], logarithms[2] - logarithms[1]
            falls = late - NORMAL_95 * np.sqrt(variances[0] + variances[1]) > -np.log(_SAME_SHARE)
            falls |= late > -np.log(_MUCH_LESS)
            # Few blocks cannot show that the old ones stay.
            third_s = (end_s - start_s) / 3
            age_s = np.maximum(self.ends_s[-1] - start_s - third_s / 2, 1e-3)
            at_constant_pace = -logarithms[0] * third_s / age_s
            highest = late + NORMAL_95 * np.sqrt(variances[0] + variances[1])
            falls |= (shares[0] < _MOST) & (highest >= at_constant_pace)
            both = late + early - NORMAL_95 * np.sqrt(variances[0] + variances[2])
            falls |= (both > -2 * np.log(_SAME_SHARE)) & (late > early / 2)
        # None of the oldest live: that is no pace, but never a sign that they stay.
        dies = np.where(lived[0] > 0, falls, (lived[1] > 0) & (born[0] > 0))
        old_share = np.where(born[0] > 0, shares[0], np.nan)
        return Fate(dies, old_share, lived[0] + lived[1], lived.sum(axis=0))

    def lengthens(self, site: int, at_s: float, firsts_s: Row, low_count: Row) -> bool:
        """Whether the blocks of a site live longer now than at a time.

        `firsts_s` are the times of the first readings in bins, and `low_count` what was live then.
        """
        bins = int(np.searchsorted(firsts_s, at_s))
        if not 0 < bins < len(firsts_s):
            return False
        starts_s = np.concatenate([[0.0], self.ends_s[:-1]])
        middles_s = (starts_s + self.ends_s) / 2
        born, lived = (np.diff(curve[:, site], prepend=0.0) for curve in (self.born, self.survived))
        was_born = born > 0
        if not was_born.any():
            return False
        share = np.minimum(lived[was_born] / born[was_born], 1.0)
        age_s = self.ends_s[-1] - middles_s[was_born]
        survive = np.interp(firsts_s[bins] - middles_s[:bins], age_s[::-1], share[::-1])
        expected, there = float(born[:bins] @ survive), float(low_count[bins])
        chance = _LENGTHEN_T / np.sqrt(max(there / self.weight[site], 1.0))
        return expected > there * (1 + max(_LENGTHEN_SHARE, float(chance)))

    def _thirds(self, start_s: Row, end_s: Row) -> tuple[Matrix, Matrix, Matrix]:
        edges_s = start_s + np.arange(4)[:, None] / 3 * np.maximum(end_s - start_s, 1e-3)
        born, lived = (
            np.diff(values_at(curve, self.ends_s, edges_s, from_zero=True), axis=0)
            for curve in (self.born, self.survived)
        )
        if self.weighted is None:
            return born, lived, np.broadcast_to(self.weight, lived.shape)
        weighted = np.diff(values_at(self.weighted, self.ends_s, edges_s, from_zero=True), axis=0)
        return born, lived, np.maximum(weighted / np.maximum(lived, 1e-9), 1.0)
