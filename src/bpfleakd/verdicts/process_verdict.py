"""Whether a process leaks: how fast its memory grows, how much of that its call sites explain, and when a
limit is reached.

Two figures are judged separately: what the leaking call sites gain (the rates of their verdicts), and the
anonymous memory of the process (resident or swapped out), to which limits apply. Memory may grow without a
traced leak: memory mapped before the attach that is touched now, fragmentation, a heap that is not traced, or
call sites whose own verdict is steady or churn. The reason then says so.

Method: as for call sites (see `measurement`), the lower envelope must rise throughout a window: all of the
time after the start-up, or its last half, quarter or eighth. The rate is that of the longest window in which
it rises evenly and that agrees with the shorter ones (Lepski's method), so it is the current one: growth that
has become slower or faster counts from then on. Memory no longer grows once a silence at the end of any
window is no accident at the pace of that window, however long the memory grew before.

The rate of a window is the trend (Theil and Sen, with the test of Mann and Kendall; see `trend`) of the
minima in up to twelve equal parts of it. Minima do not follow memory that comes and goes, and are far enough
apart to be independent. Memory grows if the test says so with 99 % confidence and the interval of the slope
is above 0. A limit is reached when the memory left below it is used up at the rate of the memory, or at the
rate of the leaks if the memory does not grow (freed memory is reused first). The forecast is linear.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.model.limit import MemoryLimit
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.units import human_duration, human_rate
from bpfleakd.verdicts.envelope import Rise, grid_of, lower_envelope, rise_of, values_at
from bpfleakd.verdicts.full_table import LIVE_BLOCKS
from bpfleakd.verdicts.measurement import STEPS_ENOUGH
from bpfleakd.verdicts.rises import is_even
from bpfleakd.verdicts.trend import Trend, trend

_START_UP_S = 5.0
_START_UP_SHARE = 0.1
_WINDOWS = 4
_PARTS = 12
_PARTS_MIN = 6
_P_MAX = 0.01
_SAME = 0.1
# Growth has stopped if a silence like that at the end of a window has less than this probability: a fiftieth
# in all of the windows.
_LOG_ALPHA = np.log(0.02 / _WINDOWS)
# The kernel's own memory counters are no more precise.
_NOISE_BYTES = 256 << 10
# If sites explain less of the growth than this, the reason leads with the rest.
_EXPLAINED_MIN = 0.5
# A straight line predicts nothing beyond a month.
_FORESEEABLE_S = 30 * 86_400


class FoundGrowth(Struct, frozen=True):
    """What the call sites of a process gain together: those that leak, and those that may.

    Suppressed sites count as neither; their gain explains growth without being a leak. The same applies to
    the garbage that a collector tolerates in proportion to the live heap, and to growing memory that a
    runtime takes for itself. Leaking mappings of files and shared memory (`mapped`) are no anonymous memory,
    to which all other figures apply. Leaking thread stacks (`stack`) are address space, of which a thread
    touches a small part: what memory grows by beyond all else, at most.
    """

    leaks: int
    leak_bytes_per_s: float
    growing_bytes_per_s: float
    suppressed_bytes_per_s: float = 0.0
    garbage_bytes_per_s: float = 0.0
    runtime_bytes_per_s: float = 0.0
    mapped_leaks: int = 0
    mapped_bytes_per_s: float = 0.0
    stack_leaks: int = 0
    stack_bytes_per_s: float = 0.0

    @property
    def any_leaks(self) -> int:
        """How many sites leak, of any kind."""
        return self.leaks + self.mapped_leaks + self.stack_leaks

    @property
    def excused_bytes_per_s(self) -> float:
        """What explains growth and is nobody's leak."""
        return self.suppressed_bytes_per_s + self.garbage_bytes_per_s + self.runtime_bytes_per_s


def classify_process(
    times_s: NDArray[np.float64],
    anonymous_bytes: NDArray[np.float64],
    found: FoundGrowth,
    limits: Sequence[MemoryLimit],
    full_since_s: float | None = None,
    full_of: str = LIVE_BLOCKS,
) -> ProcessVerdict:
    """Return the verdict on a process.

    The arguments are the least anonymous memory in bins whose first readings were at `times_s`, what the
    sites gain, and the current `limits`. The verdict is `unknown` until the memory was watched for a while,
    unless sites leak. Since `full_since_s` the table `full_of` live blocks or threads is full (None: it has
    room); then only memory shows growth.
    """
    memory, grows = _memory_trend(times_s, anonymous_bytes)
    leak_rate = found.leak_bytes_per_s
    share = None
    if grows and memory is not None:
        explained = leak_rate + found.growing_bytes_per_s + found.excused_bytes_per_s
        of_stacks = min(found.stack_bytes_per_s, max(0.0, memory.slope_per_s - explained))
        leak_rate += of_stacks
        share = min(1.0, (explained + of_stacks) / memory.slope_per_s)
    rate = memory.slope_per_s if grows and memory is not None else leak_rate
    limit, seconds = _first_limit(limits, rate)
    if found.any_leaks:
        verdict = Verdict.LEAK
    elif (grows and not _is_suppressed(memory, found)) or found.growing_bytes_per_s > 0:
        verdict = Verdict.GROWING
    else:
        verdict = Verdict.UNKNOWN if memory is None else Verdict.STEADY
    reason = _reason(memory, grows, found, share)
    if full_since_s is not None:
        reason += _since_full(times_s, anonymous_bytes, full_since_s, full_of)
    return ProcessVerdict(
        verdict=verdict,
        reason=reason,
        leak_bytes_per_s=round(leak_rate + found.mapped_bytes_per_s, 1),
        memory_bytes_per_s=_rounded(memory.slope_per_s if memory else None),
        memory_bytes_per_s_low=_rounded(memory.slope_low if memory else None),
        memory_bytes_per_s_high=_rounded(memory.slope_high if memory else None),
        explained_share=None if share is None else round(share, 3),
        limit=limit,
        limit_reached_s=None if seconds is None else round(seconds, 1),
    )


def _since_full(
    times_s: NDArray[np.float64], anonymous_bytes: NDArray[np.float64], full_since_s: float, full_of: str
) -> str:
    """What is not known since the table of live blocks or threads is full, what is, and what helps."""
    later = times_s >= full_since_s
    full_s = float(times_s[-1:].sum()) - full_since_s
    words = f"; the table of {full_of} has been full for {human_duration(full_s)}"
    if later.sum() >= _PARTS_MIN:
        since = trend(times_s[later], anonymous_bytes[later])
        grows = _grows(since, float(times_s[later][-1] - times_s[later][0]))
        does = f"grows {human_rate(since.slope_per_s)}" if grows else "does not grow"
        words += f", memory {does} since"
    sampled = "attach again with --mode sampled, or " if full_of == LIVE_BLOCKS else ""
    return f"{words}: to see more, {sampled}raise limits.{full_of.replace(' ', '_')}"


def _memory_trend(
    times_s: NDArray[np.float64], anonymous_bytes: NDArray[np.float64]
) -> tuple[Trend | None, bool]:
    """The trend of the memory now, and whether it grows; None if there are too few minima for an interval."""
    now_s = float(times_s[-1]) if len(times_s) else 0.0
    longest_s = now_s - max(_START_UP_S, _START_UP_SHARE * now_s)
    window_s: NDArray[np.float64] = np.ldexp(longest_s, -np.arange(_WINDOWS))
    parts = [_parts(times_s, now_s - one_s, now_s) for one_s in window_s.tolist()]
    parts = parts[: next((place for place, one in enumerate(parts) if len(one) < _PARTS_MIN), _WINDOWS)]
    if not parts:
        return None, False
    rises = _rises(times_s, anonymous_bytes, now_s - window_s[: len(parts)])

    def trend_in(window: int) -> Trend:
        edges = parts[window]
        # What rises is least at the first reading of a part.
        return trend(times_s[edges], np.minimum.reduceat(anonymous_bytes, edges))

    if (rises.log_p_silence < _LOG_ALPHA).any():
        return trend_in(-1), False
    even = np.flatnonzero(is_even(rises) & (rises.steps >= STEPS_ENOUGH)).tolist()
    trends = [trend_in(window) for window in even]
    for place, window in enumerate(even):
        if all(_agrees(trends[place], later) for later in trends[place + 1 :]):
            return trends[place], _grows(trends[place], window_s[window])
    # It rises unevenly: whether it does shows over the whole time, and how fast now at the end.
    last = trend_in(-1)
    return last, _grows(trend_in(0), window_s[0]) and _grows(last, window_s[len(parts) - 1])


def _parts(times_s: NDArray[np.float64], start_s: float, end_s: float) -> NDArray[np.intp]:
    """Where each part of a window begins among the bins with these first readings."""
    edges = np.searchsorted(times_s, start_s + (end_s - start_s) / _PARTS * np.arange(_PARTS))
    return np.unique(edges[edges < len(times_s)])


def _rises(
    times_s: NDArray[np.float64], anonymous_bytes: NDArray[np.float64], since_s: NDArray[np.float64]
) -> Rise:
    """How the lower envelope rises from each of these times on."""
    envelope = lower_envelope(anonymous_bytes[:, None])
    grid = grid_of(since_s, np.full(len(since_s), times_s[-1]))
    return rise_of(values_at(np.repeat(envelope, len(since_s), axis=1), times_s, grid, from_zero=False))


def _agrees(longer: Trend, later: Trend) -> bool:
    """Whether a rate is, but for a tenth, within the interval of that of a later window."""
    return (1 - _SAME) * later.slope_low <= longer.slope_per_s <= (1 + _SAME) * later.slope_high


def _grows(memory: Trend, window_s: float) -> bool:
    return (
        memory.p_increase < _P_MAX and memory.slope_low > 0 and memory.slope_per_s * window_s > _NOISE_BYTES
    )


def _is_suppressed(memory: Trend | None, found: FoundGrowth) -> bool:
    """Whether suppressed sites and the runtime itself may explain all growth."""
    explained = found.suppressed_bytes_per_s + found.runtime_bytes_per_s
    return memory is not None and memory.slope_low <= explained


def _first_limit(limits: Sequence[MemoryLimit], rate: float) -> tuple[MemoryLimit | None, float | None]:
    if not limits:
        return None, None
    limit = min(limits, key=lambda one: one.limit_bytes - one.used_bytes)
    return limit, reached_s(limit, rate)


def reached_s(limit: MemoryLimit, rate: float) -> float | None:
    """The seconds until `limit` is reached at `rate` bytes/s; None if that is not foreseeable."""
    seconds = (limit.limit_bytes - limit.used_bytes) / rate if rate > 0 else None
    return max(0.0, seconds) if seconds is not None and seconds < _FORESEEABLE_S else None


def _reason(memory: Trend | None, grows: bool, found_growth: FoundGrowth, share: float | None) -> str:
    leaks, mapped, stacks = found_growth.leaks, found_growth.mapped_leaks, found_growth.stack_leaks
    any_leaks = found_growth.any_leaks
    parts = [_leaking(leaks, found_growth.leak_bytes_per_s)] if leaks or not any_leaks else []
    if mapped:
        parts.append(f"{_leaking(mapped, found_growth.mapped_bytes_per_s)} of mapped files or shared memory")
    if stacks:
        parts.append(f"{_leaking(stacks, found_growth.stack_bytes_per_s)} of thread stacks' address space")
    found = ", ".join(parts)
    if memory is None:
        if found_growth.any_leaks or found_growth.growing_bytes_per_s <= 0:
            return found if found_growth.any_leaks else "observed too briefly"
        rate = human_rate(found_growth.growing_bytes_per_s)
        return f"call sites grow {rate}; too early to tell whether they leak"
    if not grows or share is None:
        whose = "its other memory" if mapped else "the memory of the process"
        return f"{found}; {whose} does not grow{' yet' if leaks or stacks else ''}"
    suppressed = found_growth.suppressed_bytes_per_s
    grown = f"{found}; memory grows {human_rate(memory.slope_per_s)}"
    if suppressed > 0:
        grown += f" ({human_rate(suppressed)} suppressed)"
    if found_growth.runtime_bytes_per_s > 0:
        grown += f" ({human_rate(found_growth.runtime_bytes_per_s)} of the runtime itself)"
    if found_growth.garbage_bytes_per_s > 0:
        grown += f" ({human_rate(found_growth.garbage_bytes_per_s)} room for garbage)"
    if share < _EXPLAINED_MIN:
        # Other call sites may hold some of it: a site that is steady or churns still gains and loses.
        return f"{grown}, and {1 - share:.0%} of that is outside the call sites that leak or grow"
    return f"{grown}, {share:.0%} of it in call sites that grow"


def _leaking(sites: int, bytes_per_s: float) -> str:
    if not sites:
        return "no call site leaks"
    return f"{'1 call site leaks' if sites == 1 else f'{sites:,} call sites leak'} {human_rate(bytes_per_s)}"


def _rounded(number: float | None) -> float | None:
    return None if number is None or not np.isfinite(number) else round(number, 1)
