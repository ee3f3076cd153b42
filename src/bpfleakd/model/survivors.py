"""Who allocates the objects that stay alive in a managed heap, by samples taken on request."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Survivor", "SurvivorLine", "SurvivorsPrice", "SurvivorsReport"]


@dataclass(frozen=True, slots=True)
class SurvivorsPrice:
    """What samples take: a search for what holds them stops the process for about `stops_s`.

    None if the size of the heap is unknown.
    """

    pid: int
    comm: str
    runtime: str
    stops_s: float | None


@dataclass(frozen=True, slots=True)
class SurvivorLine:
    """A frame: a method with its class, and a line, None if it is unknown."""

    function: str
    line: int | None


@dataclass(frozen=True, slots=True)
class Survivor:
    """Samples of objects of one type that one stack allocated, and that are alive: `share` of all.

    `function` and `line` are those to blame, of `stack` (innermost first). `held_by` are the fields and
    arrays that lead to one of the objects, from the root inwards; empty if none were found.
    """

    type: str
    samples: int
    share: float
    function: str | None
    line: int | None
    held_by: tuple[str, ...]
    stack: tuple[SurvivorLine, ...]


@dataclass(frozen=True, slots=True)
class SurvivorsReport:
    """Of what was allocated within `sampled_s`: those with most samples first, and the samples of all."""

    pid: int
    comm: str
    runtime: str
    sampled_s: float
    samples: int
    survivors: tuple[Survivor, ...]
