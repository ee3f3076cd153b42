"""How densely call sites were recorded over time, when the sampling interval changed.

A block of s bytes is recorded with probability p = 1 - exp(-s/T), so blocks born at a constant rate are
recorded at a rate proportional to p. By the time-rescaling theorem (Brown, Barbieri, Ventura, Kass and Frank,
The time-rescaling theorem and its application to neural spike train data analysis, Neural Computation 14,
2002) recorded blocks are again a process of constant rate if time is measured by the integral of p: the
*exposure*. A minute in which hardly anything was recorded is short in exposure, and so is its silence; its
recorded blocks count one by one, not as the thousands that each represents.

Blocks may come in steps. A step of n blocks is seen if any of them is recorded, with probability 1 - (1 -
p)^n. Silence is measured by the integral of that probability.

Matrices have a row for each bin of the timeline and a column for each site.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.verdicts.envelope import CELLS, Matrix, Row, grid_of

# Keeps exposure rising, however little is recorded.
_LEAST = 1e-9


class Exposure(Struct, frozen=True):
    """The exposure of sites.

    `chance` is the probability of recording a block in each bin, relative to the best bin; None if it never
    changed: exposure is time then. `weight` is how many blocks a recorded one represented in the best bin,
    `last_weight` in the last.
    """

    ends_s: Row
    chance: Matrix | None
    weight: Row
    last_weight: Row

    def seen(self, curve: Matrix) -> Matrix:
        """A rising curve with each recorded block counted as in the best bin."""
        if self.chance is None:
            return curve
        gains = np.diff(curve, axis=0, prepend=0.0) * self.chance
        return np.cumsum(gains, axis=0)

    def grid(self, start_s: Row, end_s: Row) -> Matrix:
        """The times that cut each site's window into CELLS parts of equal exposure: CELLS + 1 rows."""
        if self.chance is None:
            return grid_of(start_s, end_s)
        edges_s = np.concatenate([[0.0], self.ends_s])
        exposed = np.cumsum(np.vstack([np.zeros_like(self.weight), self.chance * self._widths_s]), axis=0)
        grid = np.empty((CELLS + 1, len(self.weight)))
        parts = np.linspace(0.0, 1.0, CELLS + 1)
        for site, (first_s, last_s) in enumerate(zip(start_s.tolist(), end_s.tolist(), strict=True)):
            first, last = np.interp([first_s, last_s], edges_s, exposed[:, site])
            grid[:, site] = np.interp(first + parts * (last - first), exposed[:, site], edges_s)
            grid[0, site], grid[-1, site] = first_s, last_s
        return grid

    def weighted(self, survivors: Matrix) -> Matrix | None:
        """Sums of survivors times the blocks that a recorded one represented in each bin.

        None if that number never changed.
        """
        if self.chance is None:
            return None
        return np.cumsum(survivors * self.weight / self.chance, axis=0)

    def after_share(self, share: float) -> Row:
        """When each site had received this share (0 to 1) of its exposure."""
        if self.chance is None:
            return np.full(len(self.weight), share * self.ends_s[-1])
        edges_s = np.concatenate([[0.0], self.ends_s])
        exposed = np.cumsum(np.vstack([np.zeros_like(self.weight), self.chance * self._widths_s]), axis=0)
        return np.array([np.interp(share * one[-1], one, edges_s) for one in exposed.T])

    def silence(self, blocks_a_step: Row, start_s: Row, last_s: Row, end_s: Row) -> Row:
        """Which part (0 to 1) of the visible steps of a window was due after `last_s`."""
        if self.chance is None:
            return (end_s - last_s) / np.maximum(end_s - start_s, 1e-9)
        chance = -np.expm1(np.maximum(blocks_a_step, 1.0) * np.log1p(-np.minimum(self.chance, 1 - 1e-12)))
        edges_s = np.concatenate([[0.0], self.ends_s])
        exposed = np.cumsum(np.vstack([np.zeros_like(self.weight), chance * self._widths_s]), axis=0)
        times_s = np.stack([start_s, last_s, end_s])
        at = [np.interp(times_s[:, site], edges_s, one) for site, one in enumerate(exposed.T)]
        start, last, end = np.array(at).reshape(-1, 3).T
        share: Row = (end - last) / np.maximum(end - start, 1e-12)
        return share

    @property
    def _widths_s(self) -> Matrix:
        return np.diff(self.ends_s, prepend=0.0)[:, None]

    def where(self, mine: NDArray[np.bool_], others: Exposure) -> Exposure:
        """This exposure for the sites in `mine`, and the other one for the rest."""
        if self.chance is None:
            return self
        chance = np.where(mine, self.chance, 1.0 if others.chance is None else others.chance)
        weight = np.where(mine, self.weight, others.weight)
        return Exposure(self.ends_s, chance, weight, np.where(mine, self.last_weight, others.last_weight))


def constant_exposure(ends_s: Row, weight: Row) -> Exposure:
    """The exposure of sites whose recorded blocks always represented `weight` blocks."""
    return Exposure(ends_s, None, weight, weight)


def exposure_of(ends_s: Row, intervals_bytes: Row, block_bytes: Row) -> Exposure:
    """The exposure of sites with blocks of `block_bytes`; an interval of 0 records every block."""
    sizes = np.maximum(block_bytes, 1.0)
    # An interval far below any block's size records every block.
    intervals = np.where(intervals_bytes > 0, intervals_bytes, 1e-3)[:, None]
    chance = np.maximum(-np.expm1(-sizes / intervals), _LEAST)
    best = chance.max(axis=0)
    return Exposure(ends_s, chance / best, 1 / best, 1 / chance[-1])
