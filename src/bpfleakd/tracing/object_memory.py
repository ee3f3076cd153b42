"""Blocks that the objects of a heap with counted references own: whether they stay, or wait for a collection.

CPython frees an object when nothing refers to it any more, and with it the blocks that it owns, such as the
table of a dict or a string of more than 512 bytes. Two kinds of memory grow like a leak and are none:

- Objects in cycles wait for a full collection. A site is unconfirmed until one has looked at what the second
  half of its growth began with; unless none is expected within ten minutes of growth, or a container gains
  values about as fast as the site gains blocks: garbage gains nothing.
- A bounded container, such as a deque with `maxlen`, fills.

Which container a block belongs to is not known; the one is taken whose gain fits best. Memory that an
extension requests from the C library itself is not judged by these rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from bpfleakd.analysis.managed_code import is_runtime
from bpfleakd.model.code.stack import Frame, FrameKind
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.runtimes.runtime import CYCLES_WAIT_MAX_S, Retained
from bpfleakd.tracing.owned_memory import OwnedGrowth, native_callers

_KINDS = (AllocationKind.HEAP, AllocationKind.MMAP)
# How many blocks a site may gain for each value of the container that they belong to.
_BLOCKS_MIN, _BLOCKS_MAX = 0.5, 16.0
# Bounded containers explain the growth of a heap if all others gain a smaller part of the values.
_OTHERS_MAX = 0.25
# By this factor, as a logarithm.
_CLEARLY = math.log(1.25)


class ObjectLooks(Struct, frozen=True):
    """The containers that gain values, and what the collector has looked at, in seconds since the attach.

    `looked_s`: objects from before then; None: not yet. All will have been looked at by `next_s`. Which
    containers gain values is known after some readings (`knows_containers`).
    """

    retained: Sequence[Retained]
    looked_s: float | None
    next_s: float
    knows_containers: bool


def owned_by_objects(key: SiteKey, frames: Sequence[Frame]) -> bool:
    """Whether the interpreter itself allocated a site's memory, on behalf of a Python function."""
    if key.kind not in _KINDS or not any(frame.kind is FrameKind.INTERPRETED for frame in frames):
        return False
    callers = native_callers(frames)
    return bool(callers) and is_runtime(callers[0])


def why_unconfirmed(growth: OwnedGrowth, looks: ObjectLooks, leak_after_s: float) -> str | None:
    """Why such a site may not leak although it grows like a leak; None: it leaks."""
    if growth.gained_count < 1 and not looks.retained:
        # A block of an object becomes larger, which garbage does not.
        return None
    span_s = max(growth.end_s - growth.start_s, 1.0)
    container = _container_of(growth.gained_count / span_s, looks.retained)
    if container is not None:
        return filled(container)
    if span_s > CYCLES_WAIT_MAX_S:
        return None
    if not looks.knows_containers:
        return "it may fill a container with a bound: the object heap was read too rarely to tell"
    needed_s = growth.start_s + max(leak_after_s, span_s / 2)
    if looks.looked_s is not None and looks.looked_s >= needed_s:
        return None
    if looks.next_s - growth.start_s > CYCLES_WAIT_MAX_S:
        return None
    return "it may be garbage in cycles, which only a full collection frees"


def filling(retained: Sequence[Retained]) -> str | None:
    """What fills, in words, if most values go into bounded containers; None if not."""
    bounded = [one for one in retained if one.bound is not None]
    gained = sum(one.growth_per_s or 0.0 for one in bounded)
    others = sum(one.growth_per_s or 0.0 for one in retained if one.bound is None)
    if not bounded or others > _OTHERS_MAX * gained:
        return None
    return filled(max(bounded, key=lambda one: one.growth_per_s or 0.0))


def filled(container: Retained) -> str | None:
    """What a bounded container fills, in words; None if it has no bound."""
    if container.bound is None:
        return None
    return f"it may fill the {container.container}, which has a bound of {container.bound:,}"


def _container_of(blocks_per_s: float, retained: Sequence[Retained]) -> Retained | None:
    """The container whose gain fits best; one with a bound only if it fits clearly better than all others."""
    gaining = [one for one in retained if one.growth_per_s]
    if blocks_per_s < _BLOCKS_MIN * min((one.growth_per_s or 0.0 for one in gaining), default=math.inf):
        # Rather the table of a container than its values.
        return min(gaining, key=lambda one: one.bound is not None, default=None)
    fits = [
        (abs(math.log(blocks_per_s / one.growth_per_s)) + _CLEARLY * (one.bound is not None), place)
        for place, one in enumerate(gaining)
        if one.growth_per_s and _BLOCKS_MIN <= blocks_per_s / one.growth_per_s <= _BLOCKS_MAX
    ]
    return gaining[min(fits)[1]] if fits else None
