"""Which call sites leak: a verdict on each, how sure it is, and why, in words.

A **leak** is memory that is allocated again and again and stays, whether anything still points to it or not:
a list that only grows is a leak as well.

Method. The *lower envelope* of a site is the least that was live from a time on until now. Memory that is
allocated and freed does not raise it, whatever the period. A site leaks if its envelope rises throughout a
window of at least 45 s (`history.leak_after_s`), by 32 KiB or 512 blocks: in at least four steps of 20 blocks
together, or five of 16 KiB, neither only at the beginning nor only at the end, nor in two bursts, and still
(a silence at the end is plausible at the rate until then); and if its old blocks have stopped dying. If
blocks in flight hide the rise, or the fate of the old ones, the survivors, which are the live blocks by their
time of birth, are tested in the same way. Envelopes are of bytes and of blocks: a single block that grows
shows in the bytes only. See `envelope` for the curves and tests, `exposure` for sampling that changes,
`survival` for blocks by age, `persistence` for windows and thresholds.

Assumptions, and the consequences where they do not hold:
  - Growth that will stop after more than 45 s looks like a leak until it stops (then it is a plateau). The
    last t seconds of a site that once fell back after t seconds do not count.
  - Growth that slows down counts as that of a cache, which has more and more of what is wanted. So a leak
    whose cause becomes rarer (a load that falls for minutes) is called growing until its rate is steady.
  - Blocks from before the attach are not seen. While new ones replace them, the visible blocks grow though
    the memory does not. Their frees are visible: as long as these are as many as the blocks that the largest
    sites gained, those sites are growing, not leaks.
  - Between two readings (1 s) anything may have happened.

False alarms. A site that only fluctuates has an envelope that rises at its end only, which does not count,
whatever its noise is like: no probability is involved. Growth that lasts 45 s and an eighth of the whole
history without falling back does pass: long-lived blocks that increase by chance. Then survival falls with
age, which is tested with 99 % confidence. `docs/verdicts.md` has the error rates of a simulation.

Confidence orders verdicts by the evidence for them; it is not a probability. It grows with the number of
steps and with time, and is lower if survivors were not counted or something was lost.

Sources: the participation ratio as a number of effective events is that of Bell and Dean (Atomic vibrations
in vitreous silica, 1970) and of Kish's effective sample size (Survey sampling, 1965). Survival by age as the
mark of a leak: Hauswirth and Chilimbi, SWAT: Low-overhead memory leak detection using adaptive statistical
profiling, ASPLOS 2004 (staleness), and the "fraction of survivors" of Jump and McKinley, Cork, POPL 2007. The
robust slope is Theil's and Sen's (see `trend`).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from bpfleakd.model.verdict import VERDICTS, SiteVerdict
from bpfleakd.units import human_bytes, human_duration, human_rate
from bpfleakd.verdicts.envelope import Row
from bpfleakd.verdicts.full_table import LIVE_BLOCKS
from bpfleakd.verdicts.measurement import START_UP_S, STEPS_ENOUGH
from bpfleakd.verdicts.persistence import Persistence
from bpfleakd.verdicts.rises import is_more_than_a_list

_LEAK, _GROWING, _PLATEAU, _UNKNOWN, _CHURN, _STEADY = range(len(VERDICTS))

# For a heap whose figures are only known at its collections.
_COLLECTIONS_MIN = 3
# Effective steps of a single rise, with room for rounding.
_ONE_STEP = 1.01
_OBSERVED_MIN_S = 10.0
# Growth below this share of the live figure is not reported.
_PLATEAU_SHARE = 0.1
_REPLACED_MIN = 10
# Frees of older blocks explain a site's growth from this share of its gain on, since some may be of other
# sites' blocks. An estimate of a leak that is twice too high by chance must not be explained this way.
_COUNTED_SHARE = 0.5
_ESTIMATED_SHARE = 0.75
# A difference of this many standard errors is no accident.
_FAR = 2.0
_LOSSY = 0.7
_SURVIVORS_UNKNOWN = 0.8
_UNSEEN = 0.5
# If a smaller share of old blocks lives, the share alone would read as the opposite of a leak.
_FEW_SHARE = 0.5
_SITES_FULL = "the table of call sites is full (limits.sites)"
_REGIONS_FULL = "the address space is in too many pieces"
# A smaller share of the time observed is not reported.
_UNREAD_SHARE = 0.02


class Context(Struct, frozen=True):
    """Figures of the whole process.

    `replaced_count` is the number of frees of blocks from before the attach in the last third of the time
    observed, which may explain why as many new ones stay; 0 if such frees mean nothing. For sampled blocks it
    has the same error as the gain of sites: `growth_variance` (blocks^2) is that of sites that only grow,
    `churn_variance` that of sites that also free. `lost_frees` and `lost_blocks` are the numbers of missed
    frees and unrecorded blocks; `survivors_known` whether blocks were counted by age. `unread_s` is the time
    without readings, in which blocks may have come and gone unseen. For the last `full_s` the table `full_of`
    live blocks or threads was full: sites of the heap are judged as of its beginning. `sites_are_full` if new
    sites of the heap are counted together, and `regions_are_full` if new mappings are not recorded.
    """

    replaced_count: float = 0.0
    growth_variance: float = 0.0
    churn_variance: float = 0.0
    lost_frees: int = 0
    lost_blocks: int = 0
    survivors_known: bool = True
    unread_s: float = 0.0
    full_s: float = 0.0
    full_of: str = LIVE_BLOCKS
    sites_are_full: bool = False
    regions_are_full: bool = False

    def hides(self, is_heap: bool) -> str | None:
        """Why new memory of a site, of the heap or not, may be counted elsewhere; None if it is not."""
        if is_heap:
            return _SITES_FULL if self.sites_are_full else None
        return _REGIONS_FULL if self.regions_are_full else None


class Classification(Struct, frozen=True):
    """The verdicts on sites: `codes` are positions in VERDICTS."""

    codes: NDArray[np.int8]
    confidence: Row
    leak_bytes_per_s: Row
    _measured: Persistence
    _context: Context
    _replaced: NDArray[np.bool_]
    _kept: dict[int, str]

    @property
    def leaks(self) -> NDArray[np.bool_]:
        """Which sites leak."""
        are_leaks: NDArray[np.bool_] = self.codes == _LEAK
        return are_leaks

    @property
    def has_growth(self) -> bool:
        """Whether any site leaks or grows."""
        return bool(((self.codes == _LEAK) | (self.codes == _GROWING)).any())

    @property
    def measured(self) -> Persistence:
        """The measurements that the verdicts are based on."""
        return self._measured

    def keep_leak(self, site: int, rate_bytes_per_s: float, *, is_earlier: bool = False) -> None:
        """Keep the verdict of leak on a site that was one, maybe in an earlier window of tracing."""
        self.codes[site] = _LEAK
        self.confidence[site] = max(self.confidence[site], _UNSEEN)
        self.leak_bytes_per_s[site] = rate_bytes_per_s
        self._kept[site] = (_why_recalled if is_earlier else _why_kept)(self._measured, site)

    def keep_unseen_leak(self, site: int, rate_bytes_per_s: float, seen_s: float) -> None:
        """Keep the verdict of leak on a site that was one until `seen_s`, and cannot be seen since."""
        self.codes[site] = _LEAK
        self.confidence[site] *= _UNSEEN
        self.leak_bytes_per_s[site] = rate_bytes_per_s
        self._measured.unseen_s[site] = max(self._measured.observed_s - seen_s, 1.0)

    def goes_on(self, site: int) -> bool:
        """Whether nothing contradicts an earlier leak: it is too early to tell, or the site grows."""
        m = self._measured
        if m.observed_s < _OBSERVED_MIN_S or m.collections[site] < _COLLECTIONS_MIN:
            return True
        # What fell back after most of the time may do so again: it gained nothing that stayed since.
        grows = m.persists[site] or (m.grows[site] and m.excursion_s[site] <= m.observed_s / 2)
        return bool(grows) and not (m.dies[site] or m.is_cache[site] or self._replaced[site])

    def is_hidden(self, site: int) -> bool:
        """Whether a site may go on growing unseen, under other names or unrecorded."""
        m = self._measured
        hides = self._context.hides(bool(m.is_heap[site])) is not None
        fell_back = m.excursion_s[site] > m.observed_s / 2
        return hides and not (fell_back or m.dies[site] or self._replaced[site])

    def joined(self, other: Classification) -> Classification:
        """These sites followed by the other ones, of the same process."""
        return Classification(
            np.concatenate([self.codes, other.codes]),
            np.concatenate([self.confidence, other.confidence]),
            np.concatenate([self.leak_bytes_per_s, other.leak_bytes_per_s]),
            self._measured.joined(other.measured),
            self._context,
            np.concatenate([self._replaced, other._replaced]),
            self._kept | {len(self.codes) + site: words for site, words in other._kept.items()},
        )

    def of(self, site: int) -> SiteVerdict:
        """The verdict on one site, with the reason in words."""
        verdict = VERDICTS[self.codes[site]]
        code, replaced = int(self.codes[site]), bool(self._replaced[site])
        reason = self._kept.get(site) or _reason(self._measured, self._context, site, code, replaced)
        return SiteVerdict(
            verdict,
            round(float(self.confidence[site]), 2),
            reason,
            round(float(self.leak_bytes_per_s[site]), 1),
        )


def classify_sites(measured: Persistence, context: Context) -> Classification:
    """Judge all sites of a process together."""
    m = measured
    replaced = _replaced(m, context)
    leaks = m.persists & ~m.dies & ~replaced
    growing = ~leaks & ((m.grows & (m.steps >= 2)) | (m.persists & ~(m.by_survivors & m.dies)))
    plateau = m.stopped & (m.grown_bytes >= _PLATEAU_SHARE * m.live_bytes) & ~m.persists
    unknown = (m.grows & (m.steps < 2)) | (m.born_count == 0)
    if context.lost_blocks:
        # Sites without a window have constant live figures.
        unknown |= ~m.persists
        plateau &= False
    churn = m.born_lately > 0
    too_early = (m.observed_s < _OBSERVED_MIN_S) | (m.collections < _COLLECTIONS_MIN)
    codes = np.select(
        [too_early, leaks, growing, plateau, unknown, churn],
        [_UNKNOWN, _LEAK, _GROWING, _PLATEAU, _UNKNOWN, _CHURN],
        default=_STEADY,
    ).astype(np.int8)
    rate = np.where(leaks, m.rate_bytes_per_s, 0.0)
    rate = np.where(codes == _GROWING, _growing_rate(m), rate)
    return Classification(codes, _confidence(m, context, codes), rate, m, context, replaced, {})


def _replaced(m: Persistence, context: Context) -> NDArray[np.bool_]:
    """Sites whose growth may be the replacement of blocks from before the attach, which are invisible.

    The largest sites are explained first. An error in the estimate of a site's growth is also in that of the
    older frees, so they still agree. Gains of other sites are errors.
    """
    replaced = np.zeros(len(m.persists), bool)
    if context.replaced_count < _REPLACED_MIN:
        return replaced
    # The counted frees are of blocks: they prove nothing about mappings.
    rows = np.flatnonzero(m.persists & m.by_blocks & m.is_heap)
    needed = _ESTIMATED_SHARE if context.growth_variance or context.churn_variance else _COUNTED_SHARE
    left, all_gained = context.replaced_count, m.gained_lately_count[rows].sum()
    for row in rows[np.argsort(-m.gained_lately_count[rows], kind="stable")].tolist():
        of_others = context.growth_variance * (1 - m.gained_lately_count[row] / max(all_gained, 1.0))
        error = _FAR * np.sqrt(context.churn_variance + of_others)
        if left - error < needed * m.gained_lately_count[row]:
            continue
        replaced[row] = True
        left -= m.gained_lately_count[row]
    return replaced


def _growing_rate(m: Persistence) -> Row:
    return np.where(m.persists, m.rate_bytes_per_s, m.grown_bytes / np.maximum(m.grown_s, 1.0))


def leak_confidence(steps: Row, window_s: Row, leak_after_s: float) -> Row:
    """How sure a leak is that was seen in so many steps: after a short time it may be a phase of work."""
    evidence = 1 - np.exp2(-(steps - 1) / 2)
    confidence: Row = evidence * np.clip(0.8 + (window_s - leak_after_s) / 600, 0.8, 1.0)
    return confidence


def _confidence(m: Persistence, context: Context, codes: NDArray[np.int8]) -> Row:
    evidence = 1 - np.exp2(-(np.maximum(m.window_steps, m.steps) - 1) / 2)
    time = m.observed_s / (m.observed_s + 15)
    still_rising = np.exp(m.steps * np.log1p(-np.minimum(m.silence_s / max(m.observed_s, 1.0), 0.999)))
    confidence = np.select(
        [codes == _LEAK, codes == _GROWING, codes == _PLATEAU, codes == _UNKNOWN],
        [
            leak_confidence(np.maximum(m.window_steps, m.steps), m.window_s, m.leak_after_s),
            0.3 + 0.4 * evidence,
            1 - still_rising,
            np.zeros(len(codes)),
        ],
        default=time,
    )
    if not context.survivors_known:
        confidence = np.where((codes == _LEAK) & m.by_blocks, confidence * _SURVIVORS_UNKNOWN, confidence)
    if context.lost_frees or context.lost_blocks:
        confidence = confidence * _LOSSY
    elif context.full_s:
        confidence = np.where(m.is_heap, confidence * _LOSSY, confidence)
    confidence = confidence * (1 - _unread_share(m, context))
    return np.clip(confidence, 0.0, 0.99)


def _reason(m: Persistence, context: Context, site: int, code: int, replaced: bool) -> str:
    is_full = bool(context.full_s and m.is_heap[site])
    if is_full:
        m = structs.replace(m, observed_s=max(m.observed_s - context.full_s, 0.0))
    words = {
        _LEAK: _why_leak,
        _GROWING: _why_growing,
        _PLATEAU: _why_plateau,
        _CHURN: _why_churn,
        _STEADY: _why_steady,
        _UNKNOWN: _why_unknown,
    }[code]
    text = _WHY_REPLACED if replaced and code == _GROWING else words(m, site)
    if m.unseen_s[site] and code in (_LEAK, _GROWING):
        if code == _LEAK and not m.persists[site]:
            text = "grew steadily before"
        why = context.hides(bool(m.is_heap[site])) or "too few blocks are recorded"
        text += f"; not seen for {human_duration(m.unseen_s[site])}, because {why}"
    if is_full:
        text += f"; not seen for {human_duration(context.full_s)}: the table of {context.full_of} is full"
    elif context.lost_blocks:
        text += "; blocks were not recorded"
    elif context.lost_frees and code in (_LEAK, _GROWING):
        text += "; frees were missed"
    if _unread_share(m, context) >= _UNREAD_SHARE:
        text += f"; not read for {human_duration(context.unread_s)} of that time"
    return text


def _unread_share(m: Persistence, context: Context) -> float:
    return min(1.0, context.unread_s / max(m.observed_s, 1.0))


_WHY_REPLACED = "grows while blocks from before the attach are freed: it may replace them"


def _why_leak(m: Persistence, site: int) -> str:
    grown = f"+{human_bytes(m.gained_bytes[site])} in {human_duration(m.window_s[site])}, steadily"
    if not m.by_blocks[site]:
        return f"{grown}; blocks get larger, not more"
    if m.freed_later[site]:
        return f"{grown}; old blocks are freed, but ever later, as of a queue that is emptied too slowly"
    old_share = m.old_share[site]
    if np.isnan(old_share):
        return f"{grown}, {_count(m.gained_count[site])} blocks"
    if old_share < _FEW_SHARE:
        # Most blocks of such a site are freed soon; the evidence is that the rest stays.
        return f"{grown}; old blocks stay as often as younger ones ({_share(old_share)})"
    return f"{grown}; {_share(old_share)} of old blocks still live"


def _why_kept(m: Persistence, site: int) -> str:
    grown = f"+{human_bytes(m.grown_bytes[site])} in {human_duration(m.observed_s)}"
    return f"{grown}, unevenly; it grew steadily before, and nothing shows that this has ended"


def _why_recalled(m: Persistence, site: int) -> str:
    if m.grown_bytes[site] > 0:
        grown = f"+{human_bytes(m.grown_bytes[site])} in {human_duration(m.observed_s)}"
        return f"leaked in an earlier window; {grown} in this one"
    return f"leaked in an earlier window; not seen in {human_duration(m.observed_s)} of this one"


def _why_growing(m: Persistence, site: int) -> str:
    if m.persists[site] and m.dies[site]:
        return f"{human_rate(m.rate_bytes_per_s[site])}, but old blocks are still being freed"
    grown = f"+{human_bytes(m.grown_bytes[site])}"
    if m.window_s[site] < m.leak_after_s and m.observed_s < m.leak_after_s + 10:
        return f"{grown} in {human_duration(m.observed_s)}: too early to tell it from a cache"
    if not is_more_than_a_list(m.grown_bytes[site : site + 1], m.live_count[site : site + 1])[0]:
        return f"{grown}: too little to tell it from a list of limited length"
    if m.slows[site]:
        return f"{grown}, but ever more slowly, as a cache fills"
    if m.steps[site] < STEPS_ENOUGH:
        return f"{grown}, as much as in {m.steps[site]:.0f} equal steps: too few to call a leak"
    return f"{grown}, too irregular or too recent to call a leak"


def _why_plateau(m: Persistence, site: int) -> str:
    grown, silence = human_bytes(m.grown_bytes[site]), human_duration(m.silence_s[site])
    return f"+{grown}, then stopped: no more for {silence}"


def _why_churn(m: Persistence, site: int) -> str:
    lately = f"{_count(m.born_lately[site])} blocks in {human_duration(m.observed_s / 3)}"
    if m.excursion_s[site] >= 2:
        return f"{lately} come and go: back down within {human_duration(m.excursion_s[site])}"
    return f"{lately} come and go"


def _why_steady(m: Persistence, site: int) -> str:
    if m.live_count[site] == 0:
        return f"nothing live, and nothing allocated for {human_duration(m.quiet_s[site])}"
    return f"nothing allocated for {human_duration(m.quiet_s[site])}"


def _why_unknown(m: Persistence, site: int) -> str:
    if m.observed_s < _OBSERVED_MIN_S:
        return f"observed for only {human_duration(m.observed_s)}"
    if m.collections[site] < _COLLECTIONS_MIN:
        return f"too few garbage collections since the attach to tell: {m.collections[site]:.0f}"
    if m.born_count[site] == 0:
        return "nothing was allocated"
    what, silence_s = f"+{human_bytes(m.grown_bytes[site])}", m.silence_s[site]
    grown, which = f"{what} at once", ""
    if m.steps[site] >= _ONE_STEP:
        grown, which = f"{what}, most of it at once", "the last of it "
    if silence_s >= 1:
        # A curve over a long time has few points, so the last rise may be longer ago.
        grown += f", {which}at least {human_duration(silence_s)} ago"
    # Growth has stopped if it did so in the second half of the measured time and enough is recorded.
    last_rise_s = m.observed_s - silence_s
    if last_rise_s < START_UP_S + m.grown_s[site] / 2:
        return f"{grown}, and too few blocks are recorded to tell whether it goes on"
    return f"{grown}: that does not tell whether more will follow"


def _count(number: float) -> str:
    return f"{round(number):,}"


def _share(share: float) -> str:
    if share <= 0:
        return "none"
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 1 else f"{percent:.2g}%"
