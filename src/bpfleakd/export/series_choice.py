"""Chooses the exported series: the largest, with hysteresis, within fixed limits.

Rules:
  - At most `total` keys are chosen, and at most `per_owner` of one owner. Lingering keys are added to an
    owner's (at most as many again), but never beyond `total`.
  - The weight of a chosen key is increased by `margin`: only a key that is larger by more replaces it. Two
    that differ by less never alternate.
  - A replaced or missing key lingers for `linger_s`, if there is room: Prometheus sees its last figures, and
    a key that returns in time never disappears.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct

K = TypeVar("K", bound=Hashable)


class Candidate(Struct, frozen=True):
    """The owner of a key (such as a process), and its rank."""

    owner: Hashable
    weight: float


class SeriesChoice(Generic[K]):
    """Stores only what was chosen; everything else is an argument."""

    def __init__(self, *, per_owner: int, total: int, linger_s: float, margin: float = 0.25) -> None:
        self._per_owner = per_owner
        self._total = total
        self._linger_s = linger_s
        self._margin = margin
        self._chosen: dict[K, Hashable] = {}
        self._left_s: dict[K, tuple[float, Hashable]] = {}

    def update(self, candidates: Mapping[K, Candidate], now_s: float) -> list[K]:
        """Choose among `candidates`; returns the keys to export, the largest first, then lingering ones."""
        before, self._chosen = self._chosen, self._largest(candidates)
        for key in self._chosen:
            self._left_s.pop(key, None)
        for key in before.keys() - self._chosen.keys():
            self._left_s[key] = now_s, before[key]
        self._forget_old(now_s)
        return [*self._chosen, *self._left_s]

    def _largest(self, candidates: Mapping[K, Candidate]) -> dict[K, Hashable]:
        def rank(key: K) -> tuple[float, bool]:
            weight = candidates[key].weight
            chosen = key in self._chosen
            return (-weight * (1 + self._margin) if chosen else -weight, not chosen)

        taken: dict[K, Hashable] = {}
        of_owner: Counter[Hashable] = Counter()
        for key in sorted(candidates, key=rank):
            owner = candidates[key].owner
            if len(taken) < self._total and of_owner[owner] < self._per_owner:
                taken[key] = owner
                of_owner[owner] += 1
        return taken

    def _forget_old(self, now_s: float) -> None:
        kept: dict[K, tuple[float, Hashable]] = {}
        of_owner: Counter[Hashable] = Counter()
        for key, (left_s, owner) in sorted(self._left_s.items(), key=lambda item: -item[1][0]):
            has_room = len(self._chosen) + len(kept) < self._total and of_owner[owner] < self._per_owner
            if has_room and now_s - left_s < self._linger_s:
                kept[key] = left_s, owner
                of_owner[owner] += 1
        self._left_s = kept
