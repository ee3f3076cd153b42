"""The responsible caller of outstanding blocks: the one that keeps them, not a wrapper around the allocator.

Programs have wrappers around malloc: pools, checked allocation, constructors. Some have unmistakable names,
but a stripped program has none. bpfleakd recognizes wrappers by behaviour, from the addresses of stacks
alone:

  - If another stack contains the same call and its blocks are freed, that call is not to blame. The search
    continues outwards until there is no such stack.
  - A call through which at least half of the blocks of a process pass, for many callers, is a wrapper too.

From that call outwards, analysis/blame.py chooses the frame. `ChargeRules` take precedence over all of this.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from msgspec import Struct

from bpfleakd.analysis.blame import blamed_frame, named_in_library
from bpfleakd.model.code.stack import Frame
from bpfleakd.model.site import SiteCounters

# A site that holds at most this share of its blocks counts as one that frees them.
_HELD_SHARE = 0.1
# A wrapper serves at least this many callers, with at least this share of the process' allocations.
_CALLERS_MIN = 8
_WRAPPER_SHARE = 0.5
_WRAPPERS_DEEP = 8

# Unmistakable names of wrappers, which need no evidence from frees.
_ALLOCATING = re.compile(
    r"""(?:[\w:<>, ]*::)?(?:
          \w*(?-i:[mczpMCZP]alloc|[MCZP]ALLOC|[rR]ealloc|ReAlloc|REALLOC)
          (?:ate|ator|0|z|f|n|_n|_array|_aligned|_?wrap\w*|_usable\w*|_internal|_impl)?
        | \w*(?:strn?|mem|wcs)dup\d? | (?:\w*_)?(?:mem|heap|pool|arena|virtual)_?alloc(?:ate)?
        )(?:\(.*)?""",
    re.VERBOSE | re.IGNORECASE,
)

Addresses = Sequence[int]


class ChargeRules(Struct, frozen=True):
    """Functions, as shell patterns: `skip` are never charged, nor is anything further out than `stop`."""

    skip: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()


NO_RULES = ChargeRules()


def gives_back(counters: SiteCounters) -> bool:
    """Whether nearly all blocks allocated at a site have been freed."""
    return counters.allocated_count > 0 and counters.live_count <= _HELD_SHARE * counters.allocated_count


class GivenBack:
    """Stacks (addresses, innermost first) of sites that free their blocks."""

    def __init__(self, stacks: Iterable[Addresses]) -> None:
        self._sorted = sorted({tuple(stack) for stack in stacks})

    def shared(self, stack: Addresses) -> int:
        """How many of the innermost addresses of `stack` the most similar of these stacks shares."""
        key = tuple(stack)
        # In sorted order, the stacks with the longest common prefix are adjacent to it.
        index = bisect_left(self._sorted, key)
        return max((_common(key, near) for near in self._sorted[max(0, index - 1) : index + 1]), default=0)


class Callers:
    """The stacks of a process: for each its addresses, the blocks allocated, and whether it frees them."""

    def __init__(self, stacks: Iterable[tuple[Addresses, int, bool]] = ()) -> None:
        stacks = list(stacks)
        self._given_back = GivenBack(addresses for addresses, _count, gives in stacks if gives)
        self._wrappers = _wrappers([(tuple(addresses), count) for addresses, count, _gives in stacks])

    def wrapped(self, stack: Addresses, *, is_given_back: bool) -> int:
        """How many of the innermost addresses of a stack belong to wrappers."""
        key = tuple(stack)
        of_many = max((len(one) for one in self._wrappers if key[: len(one)] == one), default=0)
        # A site that frees its blocks is not hidden by others that do.
        return of_many if is_given_back else max(of_many, self._given_back.shared(key))


def charged_frame(
    frames: Sequence[Frame], callers: Callers, rules: ChargeRules = NO_RULES, *, is_given_back: bool = False
) -> Frame | None:
    """The frame to charge a site to; None for an empty stack."""
    ends = _ends(frames)
    wrapped = callers.wrapped([frames[end - 1].address for end in ends], is_given_back=is_given_back)
    inner = ends[wrapped - 1] if wrapped else 0
    outer = frames[inner:] or frames
    allocators_file = frames[0].module if frames else None
    chosen = blamed_frame([frame for frame in outer if not _is_skipped(frame, rules)], allocators_file)
    chosen = chosen or blamed_frame(outer, allocators_file)
    chosen = named_in_library(frames, chosen) if chosen else None
    if not rules.stop:
        return chosen
    return next((frame for frame in _up_to(frames, chosen) if _is_one_of(frame, rules.stop)), chosen)


def _ends(frames: Sequence[Frame]) -> list[int]:
    """The end of each address' frames: inlined functions come before the frame that contains them."""
    return [index + 1 for index, frame in enumerate(frames) if not frame.inlined]


def _is_skipped(frame: Frame, rules: ChargeRules) -> bool:
    is_allocating = frame.function is not None and _is_allocating(frame.function)
    return is_allocating or _is_one_of(frame, rules.skip)


@lru_cache(maxsize=1024)
def _is_allocating(function: str) -> bool:
    # Reports look up the same few functions again and again.
    return bool(_ALLOCATING.fullmatch(function))


def _is_one_of(frame: Frame, patterns: Sequence[str]) -> bool:
    if not patterns:
        return False
    return frame.function is not None and any(fnmatchcase(frame.function, pattern) for pattern in patterns)


def _up_to(frames: Sequence[Frame], chosen: Frame | None) -> Iterable[Frame]:
    for frame in frames:
        yield frame
        if frame is chosen:
            return


def _wrappers(stacks: Sequence[tuple[tuple[int, ...], int]]) -> list[tuple[int, ...]]:
    """The innermost parts of stacks through which most blocks pass, for many callers."""
    least = _WRAPPER_SHARE * sum(count for _stack, count in stacks)
    found = []
    for depth in range(1, _WRAPPERS_DEEP):
        passing: dict[tuple[int, ...], int] = {}
        callers: dict[tuple[int, ...], set[int]] = {}
        for stack, count in stacks:
            if len(stack) > depth:
                passing[stack[:depth]] = passing.get(stack[:depth], 0) + count
                callers.setdefault(stack[:depth], set()).add(stack[depth])
        large = [start for start, count in passing.items() if count >= least > 0]
        if not large:
            break
        found += [start for start in large if len(callers[start]) >= _CALLERS_MIN]
    return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
