"""When to compute the verdicts on a process: rarely enough to cost little, soon enough for requests.

Costs are processor time. An evaluation that only waited for a busy machine is no reason for a longer pause:
verdicts would come late just when the daemon is in a hurry, after a restart for instance.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_NS_PER_S = 1_000_000_000
_PAUSE_NS = 5 * _NS_PER_S
# A leak that begins late is found after a fraction of the time observed at the earliest.
_PAUSE_OF_OBSERVED = 1 / 24
_LONGEST_PAUSE_NS = 30 * _NS_PER_S
# For a process whose memory has stayed the same.
_LONGEST_QUIET_PAUSE_NS = 300 * _NS_PER_S
_CHANGE, _CHANGE_BYTES = 0.02, 1 << 20
_PAUSE_WHEN_ASKED_NS = _NS_PER_S
# The share of processor time for verdicts without a request, and for requested ones.
_SHARE = 0.008
_SHARE_WHEN_ASKED = 0.05
# One process takes less, up to the longest pause, unless a new leak is to be confirmed.
_SHARE_OF_ONE = 0.002
# A million blocks take 0.8 s, and a call site as much as 15 blocks. If that is too long, a request gets the
# last verdict unless it is old, and the next tick computes a new one.
_BLOCKS_WAITED_FOR = 300_000
_BLOCKS_A_SITE = 15
_OLD_NS = 10 * _NS_PER_S


def has_changed(before_bytes: int | None, now_bytes: int) -> bool:
    """Whether the memory of a process differs from before, by more than what any process varies."""
    return before_bytes is None or abs(now_bytes - before_bytes) > max(_CHANGE_BYTES, _CHANGE * before_bytes)


class VerdictPacing:
    """The pauses between evaluations, from the cost of the last one."""

    def __init__(self, first_leak_s: float, spent_ns: Callable[[], int] = time.thread_time_ns) -> None:
        """A leak is first found `first_leak_s` after attach; `spent_ns` is the thread's processor time."""
        self._first_leak_ns = round(first_leak_s * _NS_PER_S)
        self._spent_ns = spent_ns
        self._began_ns = self._began_spent_ns = 0
        self._took_ns = 0
        # As last noted, and as it was in the last evaluation.
        self._memory_bytes: int | None = None
        self._judged_bytes: int | None = None
        self._is_wanted = self._is_unconfirmed = False

    def note_memory(self, memory_bytes: int | None) -> None:
        """Record the memory of the process; None if it would not show that nothing has happened."""
        self._memory_bytes = memory_bytes

    def begin(self, now_ns: int) -> None:
        """Record the beginning of an evaluation."""
        self._judged_bytes = self._memory_bytes
        self._began_ns, self._began_spent_ns, self._is_wanted = now_ns, self._spent_ns(), False

    def end(self, *, is_unconfirmed: bool = False) -> None:
        """Record the end of an evaluation, and whether it found a leak that the next one is to confirm."""
        self._took_ns, self._is_unconfirmed = self._spent_ns() - self._began_spent_ns, is_unconfirmed

    def is_due(self, now_ns: int, began_ns: int, *, processes: int = 1, asked: bool = False) -> bool:
        """Whether the next evaluation is due, for one of `processes` processes, observed since `began_ns`.

        It is due sooner after a request, or after one that did not wait (`want`), and as soon as there may be
        a leak for the first time: earlier evaluations of many blocks must not delay that one. It may wait
        longer while the memory is as it was in the last one.
        """
        asked = asked or self._is_wanted or self._began_ns < began_ns + self._first_leak_ns <= now_ns
        busy_ns = self._took_ns * processes / (_SHARE_WHEN_ASKED if asked else _SHARE)
        if not asked and not self._is_unconfirmed:
            busy_ns = max(busy_ns, min(self._took_ns / _SHARE_OF_ONE, _LONGEST_PAUSE_NS))
        now_bytes = self._memory_bytes
        is_quiet = now_bytes is not None and not has_changed(self._judged_bytes, now_bytes)
        longest_ns = _LONGEST_QUIET_PAUSE_NS if is_quiet and not self._is_unconfirmed else _LONGEST_PAUSE_NS
        aged_ns = min(round((now_ns - began_ns) * _PAUSE_OF_OBSERVED), longest_ns)
        pause_ns = _PAUSE_WHEN_ASKED_NS if asked else max(_PAUSE_NS, aged_ns)
        return now_ns - self._began_ns >= max(pause_ns, busy_ns)

    def want(self, now_ns: int, live_blocks: int, sites: int) -> bool:
        """Whether to evaluate now for a request. The next tick does long evaluations, if the last is new."""
        is_new = now_ns - self._began_ns < _OLD_NS
        self._is_wanted = is_new and live_blocks + _BLOCKS_A_SITE * sites > _BLOCKS_WAITED_FOR
        return not self._is_wanted
