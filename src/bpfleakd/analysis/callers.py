"""Who is to answer for outstanding blocks: the caller that keeps what it got, not the wrapper it got it from.

A program has wrappers of its own around malloc: pools, checked allocation, constructors. The frame that a
call site is blamed on (analysis/blame.py) is then the wrapper, for all its callers. But where another stack
leads through the same call and gives back what it gets, that call is not to blame. So we go outwards until no
stack that gives back is left: the first frame from there on is who keeps the blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from bpfleakd.analysis.blame import blamed_frame
from bpfleakd.model.site import SiteCounters
from bpfleakd.model.stack import Frame

__all__ = ["GivenBack", "gives_back", "keeper"]

# What a site may still hold of its blocks, where the rest shows that it frees them.
_HELD_SHARE = 0.1


def gives_back(counters: SiteCounters) -> bool:
    """Whether nearly all that was allocated at a site was freed again."""
    return counters.allocated_count > 0 and counters.live_count <= _HELD_SHARE * counters.allocated_count


class GivenBack:
    """The stacks (addresses, innermost first) of sites that give back."""

    def __init__(self, stacks: Iterable[Sequence[int]]) -> None:
        self._sorted = sorted({tuple(stack) for stack in stacks})

    def shared(self, stack: Sequence[int]) -> int:
        """How many of the innermost addresses of `stack` one of the stacks has, too."""
        key = tuple(stack)
        # In order, those with the longest common beginning are next to it.
        index = bisect_left(self._sorted, key)
        return max((_common(key, near) for near in self._sorted[max(0, index - 1) : index + 1]), default=0)


def keeper(frames: Sequence[Frame], given_back: GivenBack) -> Frame | None:
    """The frame that keeps what is outstanding at a site; the blamed one if no other is known to give back.

    None for an empty stack.
    """
    # Functions that were inlined have the address of the frame that holds them, which comes after them.
    ends = [index + 1 for index, frame in enumerate(frames) if not frame.inlined]
    shared = given_back.shared([frames[end - 1].address for end in ends])
    outer = frames[ends[shared - 1] :] if shared else frames
    return blamed_frame(outer or frames)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
