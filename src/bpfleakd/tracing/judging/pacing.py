"""When the verdicts on a process are computed: seldom enough to cost little, soon enough for who asks."""

from __future__ import annotations

__all__ = ["VerdictPacing"]

_NS_PER_S = 1_000_000_000
_PAUSE_NS = 5 * _NS_PER_S
# What begins to leak after long is told apart no sooner than in a part of that time.
_PAUSE_OF_OBSERVED = 1 / 24
_LONGEST_PAUSE_NS = 30 * _NS_PER_S
_PAUSE_WHEN_ASKED_NS = _NS_PER_S
# The part of the time that may go into verdicts that nobody asked for, and into those that somebody did.
_SHARE = 0.008
_SHARE_WHEN_ASKED = 0.05
# A million blocks take 0.8 s, and a call site as much as 15 blocks: who asks gets the last verdict where that
# is too long, and the next tick makes a new one.
_BLOCKS_WAITED_FOR = 300_000
_BLOCKS_A_SITE = 15


class VerdictPacing:
    """The pauses between evaluations, by what the last one cost."""

    def __init__(self) -> None:
        self._began_ns = 0
        self._took_ns = 0
        self._is_wanted = False

    def begin(self, now_ns: int) -> None:
        """An evaluation begins."""
        self._began_ns, self._is_wanted = now_ns, False

    def end(self, now_ns: int) -> None:
        """The evaluation has ended."""
        self._took_ns = now_ns - self._began_ns

    def is_due(self, now_ns: int, began_ns: int, *, processes: int = 1, asked: bool = False) -> bool:
        """Whether it is time for the next one, of a process observed since `began_ns`, one of so many.

        Sooner if somebody asks, or has asked and did not wait (`want`).
        """
        asked = asked or self._is_wanted
        busy_ns = round(self._took_ns * processes / (_SHARE_WHEN_ASKED if asked else _SHARE))
        aged_ns = min(round((now_ns - began_ns) * _PAUSE_OF_OBSERVED), _LONGEST_PAUSE_NS)
        pause_ns = _PAUSE_WHEN_ASKED_NS if asked else max(_PAUSE_NS, aged_ns)
        return now_ns - self._began_ns >= max(pause_ns, busy_ns)

    def want(self, live_blocks: int, sites: int, *, can_wait: bool) -> bool:
        """Somebody asks: whether to evaluate now. The next tick does what takes long, if they `can_wait`."""
        self._is_wanted = can_wait and live_blocks + _BLOCKS_A_SITE * sites > _BLOCKS_WAITED_FOR
        return not self._is_wanted
