"""The allocators of objects that stay alive in a managed heap, from samples taken on request."""

from __future__ import annotations

from msgspec import Struct

_TIMES_MAX, _LONGEST_S = 6, 300.0


def longest_s(sample_s: float) -> float:
    """How long samples are taken of a program that allocates little, if `sample_s` was requested."""
    return max(sample_s, min(_TIMES_MAX * sample_s, _LONGEST_S))


class SurvivorsPrice(Struct, frozen=True):
    """The cost of samples: the search for references to them stops the process for about `stops_s`.

    None if the size of the heap is unknown.
    """

    pid: int
    comm: str
    runtime: str
    stops_s: float | None


class SurvivorLine(Struct, frozen=True):
    """A frame: a method with its class, and a line, None if it is unknown."""

    function: str
    line: int | None


class Survivor(Struct, frozen=True):
    """Samples of objects of one type that one stack allocated, and that are alive: `share` of all.

    `function` and `line` are the blamed ones of `stack` (innermost first). `held_by` are the fields and
    arrays that lead to one of the objects, from the root inwards; empty if none were found.
    """

    type: str
    samples: int
    share: float
    function: str | None
    line: int | None
    held_by: tuple[str, ...]
    stack: tuple[SurvivorLine, ...]


class SurvivorsReport(Struct, frozen=True):
    """The survivors of objects allocated within `sampled_s`, those with most samples first.

    `samples` is the number of all samples.
    """

    pid: int
    comm: str
    runtime: str
    sampled_s: float
    samples: int
    survivors: tuple[Survivor, ...]
