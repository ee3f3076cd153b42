"""Which memory stays: rising curves of many call sites at once, and tests of how they rise.

Rules:
  - Two curves never fall. The *lower envelope* is the least that was live from a time on until now: memory
    that is allocated and freed does not raise it, however often and however much. The *survivors* are the
    live blocks that were born before a time. Survivors <= envelope <= live, at every time.
  - The end of the envelope proves nothing: it always equals what is live now. A site that once fell back
    after 10 s may do so again, so its last 10 s do not count (`longest_excursion_s`).
  - The gains in `CELLS` equal parts of a window show the shape of a rise. The number of *effective steps* is
    (sum of gains)^2 / (sum of squared gains), the participation ratio: the number of
    equal steps with the same ratio. One jump is 1 step, however large; a straight line is CELLS steps.
  - Under the hypothesis of a constant rate, steps fall anywhere in the window with equal probability. The
    probability of no step in a given part s of it is (1 - s)^n, and in any such part at most (n + 1) times
    that (a pause; n steps have n + 1 spacings); at most a share f of n steps in a third of it has at most
    exp(-n KL(f, 1/3)) (Chernoff 1952, for the binomial distribution); and the mean time of n steps, as a part
    of the window, is normal around 1/2 with variance 1 / 12n: Laplace's test of a point process for a trend
    of its rate (Cox and Lewis, The statistical analysis of series of events, 1966).

Matrices have a row for each bin of the timeline and a column for each site; all times are seconds since the
recording began.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

CELLS = 24
# A rise counts as over when this share of it is left.
_REST = 0.02
# A cell with less than this part of an even share belongs to a pause.
_NO_STEP = 0.1
_THIRD = CELLS // 3
_NUMBERS = np.arange(1, CELLS + 1)[:, None]

Matrix = NDArray[np.float64]
Row = NDArray[np.float64]


class Rise(Struct, frozen=True):
    """How curves rise in their windows: one figure per site.

    `gain` is in the curve's unit; `steps` is the number of effective steps. `silence` is the part of the
    window (0 to 1) at its end without a notable step, `pause` the longest such part of it. `first_third` and
    `last_third` are the shares of the gain in those thirds. All are 0 if nothing was gained. `z_rate` is the
    deviate of Laplace's test: below 0 the rate falls.
    """

    gain: Row
    steps: Row
    silence: Row
    pause: Row
    first_third: Row
    last_third: Row
    z_rate: Row

    @property
    def log_p_silence(self) -> Row:
        """The logarithm of the probability of this silence, assuming the curve still rises as before."""
        return log_p_none(self.steps, self.silence)

    @property
    def log_p_pause(self) -> Row:
        """A bound on the logarithm of the probability of so long a pause, assuming a constant rate."""
        return np.log1p(self.steps) + log_p_none(self.steps, self.pause)

    @property
    def log_p_first_third(self) -> Row:
        """The logarithm of the probability of this little gain, or less, in the first third.

        It is 0 from a third of the gain on.
        """
        return _log_chernoff(self.first_third, self.steps)

    @property
    def log_p_last_third(self) -> Row:
        """The same as `log_p_first_third` for the last third."""
        return _log_chernoff(self.last_third, self.steps)


def log_p_none(number: Row, part: Row) -> Row:
    """The logarithm of the probability that none of so many events falls into a given part of the time.

    `part` is 0 to 1; each event falls anywhere with equal probability.
    """
    log_p: Row = number * np.log1p(-np.minimum(part, 1 - 1e-9))
    return log_p


def lower_envelope(low: Matrix) -> Matrix:
    """The least of each bin and all later ones."""
    return np.minimum.accumulate(low[::-1], axis=0)[::-1]


def longest_excursion_s(low: Matrix, envelope: Matrix, widths_s: Row) -> Row:
    """The longest time that each site spent above its envelope before it fell back."""
    above = low > envelope
    longest = np.zeros(low.shape[1])
    current = np.zeros(low.shape[1])
    for row, width_s in zip(above, widths_s, strict=True):
        current = np.where(row, current + width_s, 0.0)
        np.maximum(longest, current, out=longest)
    return longest


def grid_of(start_s: Row, end_s: Row) -> Matrix:
    """The edges of CELLS equal parts of each site's window: CELLS + 1 rows."""
    return start_s + np.linspace(0.0, 1.0, CELLS + 1)[:, None] * (end_s - start_s)


def values_at(curve: Matrix, ends_s: Row, times_s: Matrix, *, from_zero: bool) -> Matrix:
    """Each site's curve at its own times, interpolated linearly between the ends of bins.

    With `from_zero`, the curve starts at 0 (a sum over bins); otherwise it is constant in the first bin (an
    envelope).
    """
    after = np.minimum(np.searchsorted(ends_s, times_s, side="left"), len(ends_s) - 1)
    starts_s = np.concatenate([[0.0], ends_s[:-1]])
    sites = np.arange(curve.shape[1])
    later, earlier = curve[after, sites], curve[np.maximum(after - 1, 0), sites]
    if from_zero:
        earlier = np.where(after > 0, earlier, 0.0)
    part = np.clip((times_s - starts_s[after]) / np.maximum(ends_s - starts_s, 1e-9)[after], 0.0, 1.0)
    between: NDArray[np.float64] = earlier + part * (later - earlier)
    return between


def rise_of(values: Matrix) -> Rise:
    """How curves rise over a grid; `values` is a result of `values_at`."""
    gains = np.maximum(np.diff(values, axis=0), 0.0)
    gain = gains.sum(axis=0)
    share = gains / np.where(gain > 0, gain, 1.0)
    squares = (share**2).sum(axis=0)
    steps = np.where(gain > 0, 1.0 / np.where(squares > 0, squares, 1.0), 0.0)
    reached = np.cumsum(share, axis=0) >= 1.0 - _REST
    silence = np.where(gain > 0, 1.0 - (np.argmax(reached, axis=0) + 1) / CELLS, 0.0)
    last_step = np.maximum.accumulate(np.where(share > _NO_STEP / CELLS, _NUMBERS, 0), axis=0)
    pause = np.where(gain > 0, (_NUMBERS - last_step).max(axis=0) / CELLS, 0.0)
    middles = (np.arange(CELLS) + 0.5) / CELLS
    mean_time = np.where(gain > 0, (share * middles[:, None]).sum(axis=0), 0.5)
    return Rise(
        gain=gain,
        steps=steps,
        silence=silence,
        pause=pause,
        first_third=share[:_THIRD].sum(axis=0),
        last_third=share[-_THIRD:].sum(axis=0),
        z_rate=(mean_time - 0.5) * np.sqrt(12 * steps),
    )


def last_rise_s(rise: Rise, grid: Matrix) -> Row:
    """When each curve last rose on the grid of `rise`; the start of the grid if it never did."""
    cell = np.rint((1.0 - rise.silence) * CELLS).astype(np.intp)
    last_s: Row = np.where(rise.gain > 0, np.take_along_axis(grid, cell[None, :], axis=0)[0], grid[0])
    return last_s


def first_rise_s(values: Matrix, grid: Matrix) -> Row:
    """When each curve began to rise, as it is over `grid`; the start of the grid if it never did."""
    reached = np.cumsum(np.maximum(np.diff(values, axis=0), 0.0), axis=0)
    cell = np.argmax(reached > _REST * reached[-1], axis=0)
    first_s: Row = np.take_along_axis(grid, cell[None, :], axis=0)[0]
    return first_s


def _log_chernoff(share: Row, steps: Row) -> Row:
    """Chernoff's bound for at most this share of the steps in a third of the window."""
    expected = 1 / 3
    low = np.clip(share, 1e-12, 1.0)
    high = np.clip(1 - share, 1e-12, 1.0)
    divergence = low * np.log(low / expected) + high * np.log(high / (1 - expected))
    return np.where(share < expected, -steps * divergence, 0.0)
