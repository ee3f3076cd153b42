"""Follows sampled objects through collections, to find the functions that allocate retained objects.

An AllocationTick is a sample of about 100 kB of allocations, with the address of one object. After each
collection, the runtime reports which ranges survived in the generations it collected, and where they moved. A
sample outside of them is garbage. The remaining samples show, by stack and type, what makes the heap grow: a
method that makes ten times as much garbage has no survivors.

Rules:
- A new sample is in generation 0; that of a large object in the oldest one. Survivors move to the next
  generation.
- A collection of generation g covers the samples of generations up to g. The others stay as they are.
- A background collection covers the samples that were in the oldest generation when it began, and the young
  ones from before, if it tells of survivors among them: then it has swept their generations, too. What has
  died there is a free place, and the next object in it is none of the sample's. It makes nothing older.
- If a background collection moves objects it is none: the runtime announces one before it knows that its
  thread has not started yet.
- What stays are the samples that a full collection found alive long after they were taken. The others may be
  garbage: what a queue or a cache holds for a while reaches the old generations, and dies there.
- While no sample is known to stay, all samples that survived any collection count. They are not proven.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.runtimes.dotnet import events
from bpfleakd.runtimes.dotnet.nettrace import Event
from bpfleakd.runtimes.runtime import Retained

_OLDEST = 2
# Growth counts samples taken in this first part of the time until a full collection.
_PROVEN_SHARE = 0.5
# The minimum time from a sample to the full collection that proves it retained: objects in flight have died
# by then.
_PROVEN_MIN_NS = 6_000_000_000
# Samples since the last collection, and survivors; beyond that every second one is followed, and so on.
_SAMPLES_MAX = 20_000
_KINDS_MAX = 20_000
_ALLOCATED, _SURVIVED, _STAYS = 0, 1, 2
_NONE: NDArray[np.int64] = np.zeros(0, np.int64)


class _Collection(Struct):
    """A collection in progress; a row of `survivors` has old start, new start and size."""

    number: int
    depth: int
    began_ns: int
    survivors: list[NDArray[np.uint64]]
    moves: bool = False


class SampledSurvivors:
    """The samples of one session, which began at `began_ns` and has seen so many `collections`.

    `proofs` of these were full, and late enough to show what stays.
    """

    def __init__(self) -> None:
        self.began_ns = 0
        self.last_ns = 0
        self.collections = 0
        self.proofs = 0
        self._proof_ns = 0
        self.ticks = 0
        self._kinds: dict[tuple[str, tuple[int, ...]], int] = {}
        self._addresses = _NONE.astype(np.uint64)
        self._kind = _NONE
        self._bytes = _NONE
        self._generation = _NONE
        self._since_ns = _NONE
        self._born_ns = _NONE
        # The degree of evidence: allocated, found alive by a collection, retained.
        self._known = _NONE
        self._new: list[tuple[int, int, int, int, int]] = []
        self._foreground: _Collection | None = None
        self._background: _Collection | None = None
        self._every = 1
        self._pending_bytes = 0

    def take(self, new: Iterable[Event]) -> None:
        """Process events in order. Raises struct.error or BadNettrace if one is truncated."""
        for event in new:
            self.began_ns = self.began_ns or event.time_ns
            self.last_ns = event.time_ns
            match event.number:
                case events.ALLOCATION_TICK:
                    self._sample(event)
                case events.GC_START:
                    self._begin(event)
                case events.BULK_SURVIVING | events.BULK_MOVED:
                    self._survived(event)
                case events.GC_END:
                    self._end(event)

    def retained(self) -> list[Retained]:
        """Retained samples by type and stack, most bytes first: found alive by a full collection long after.

        Growth is in bytes per second. If there are none, all survivors count, and nothing is proven.
        """
        self._settle()
        stays = self._known >= _STAYS
        # The first such collection may come before any sample is old enough.
        is_proven = bool(stays.any())
        if not is_proven:
            stays = self._known >= _SURVIVED
        grown, grown_s = stays, (self.last_ns - self.began_ns) / 1e9
        if is_proven:
            proven_ns = self.began_ns + int(_PROVEN_SHARE * (self._proof_ns - self.began_ns))
            grown, grown_s = stays & (self._born_ns < proven_ns), (proven_ns - self.began_ns) / 1e9
        live_bytes, growing_bytes = self._bytes_by_kind(stays), self._bytes_by_kind(grown)
        samples = np.bincount(self._kind[stays], minlength=len(self._kinds))
        found = [
            Retained(
                *name,
                int(live_bytes[kind]),
                int(samples[kind]),
                float(growing_bytes[kind]) / max(1.0, grown_s),
                is_proven=is_proven,
            )
            for name, kind in self._kinds.items()
            if samples[kind]
        ]
        return sorted(found, key=lambda one: -one.live_bytes)

    def _bytes_by_kind(self, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = np.zeros(len(self._kinds))
        np.add.at(sums, self._kind[chosen], self._bytes[chosen])
        return sums

    def _sample(self, event: Event) -> None:
        tick = events.allocation_tick(event)
        self.ticks += 1
        self._pending_bytes += tick.allocated_bytes
        if not tick.address or self.ticks % self._every:
            return
        kind = (tick.type, event.stack)
        if kind not in self._kinds and len(self._kinds) >= _KINDS_MAX:
            return
        number = self._kinds.setdefault(kind, len(self._kinds))
        generation = _OLDEST if tick.is_large else 0
        self._new.append((tick.address, number, self._pending_bytes, generation, event.time_ns))
        self._pending_bytes = 0
        if len(self._new) + len(self._addresses) > _SAMPLES_MAX:
            self._thin()

    def _thin(self) -> None:
        """Follow every second sample from now on; each represents two."""
        self._settle()
        self._every *= 2
        kept = np.arange(len(self._addresses)) % 2 == 0
        self._keep(kept)
        self._bytes = self._bytes * 2

    def _begin(self, event: Event) -> None:
        number, depth, kind = events.gc_start(event)
        found = _Collection(number, depth, event.time_ns, [])
        # The others run alone: none is in progress any more, though its end may be missing.
        self._foreground = None if kind == events.BACKGROUND else found
        if kind == events.BACKGROUND:
            self._background = found

    def _survived(self, event: Event) -> None:
        # A background collection in progress pauses for this one.
        collection = self._foreground or self._background
        if collection is None:
            return
        if event.number == events.BULK_MOVED:
            collection.moves = True
            collection.survivors.append(events.moved_ranges(event))
        else:
            ranges = events.surviving_ranges(event)
            collection.survivors.append(ranges[:, [0, 0, 1]])

    def _end(self, event: Event) -> None:
        number, _depth = events.gc_end(event)
        self._settle()
        if self._foreground is not None and self._foreground.number == number:
            collection, self._foreground = self._foreground, None
            self._apply(collection, self._generation <= collection.depth)
        elif self._background is not None and self._background.number == number:
            collection, self._background = self._background, None
            if collection.moves:
                self._apply(collection, self._generation <= collection.depth)
            else:
                self._apply(collection, self._in_background(collection), promotes=False)
        else:
            # It began before the session, so the fate of the young samples is unknown.
            self._keep(self._generation > 0)

    def _in_background(self, collection: _Collection) -> NDArray[np.bool_]:
        """The samples that a background collection covers."""
        is_old: NDArray[np.bool_] = (self._generation == _OLDEST) & (self._since_ns < collection.began_ns)
        is_young: NDArray[np.bool_] = (self._generation < _OLDEST) & (self._born_ns < collection.began_ns)
        starts = [one[:, 0] for one in collection.survivors]
        if not is_young.any() or not starts:
            return is_old
        found, among = np.concatenate(starts), self._addresses[is_young]
        reaches_young = bool(((found >= among.min()) & (found <= among.max())).any())
        return is_old | (is_young & reaches_young)

    def _apply(
        self, collection: _Collection, candidates: NDArray[np.bool_], *, promotes: bool = True
    ) -> None:
        self.collections += 1
        is_full = collection.depth >= _OLDEST
        if is_full and collection.began_ns - self.began_ns >= _PROVEN_MIN_NS:
            self.proofs += 1
            self._proof_ns = collection.began_ns
        found, moved = _moved(self._addresses, collection.survivors)
        self._addresses = np.where(found, moved, self._addresses)
        is_late = is_full & (collection.began_ns - self._born_ns >= _PROVEN_MIN_NS)
        now_known = np.where(found & candidates, np.where(is_late, _STAYS, _SURVIVED), _ALLOCATED)
        self._known = np.maximum(self._known, now_known)
        older = found & candidates & (self._generation < _OLDEST) & promotes
        self._generation = self._generation + older
        self._since_ns = np.where(older, self.last_ns, self._since_ns)
        self._keep(found | ~candidates)

    def _settle(self) -> None:
        """Add the new samples to the others."""
        if not self._new:
            return
        new = np.array(self._new, np.uint64)
        self._new = []
        self._addresses = np.concatenate([self._addresses, new[:, 0]])
        kind, size, generation, since_ns = (new[:, column].astype(np.int64) for column in (1, 2, 3, 4))
        self._kind = np.concatenate([self._kind, kind])
        self._bytes = np.concatenate([self._bytes, size])
        self._generation = np.concatenate([self._generation, generation])
        self._since_ns = np.concatenate([self._since_ns, since_ns])
        self._born_ns = np.concatenate([self._born_ns, since_ns])
        self._known = np.concatenate([self._known, np.full(len(new), _ALLOCATED)])

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        self._addresses, self._kind, self._bytes = (
            self._addresses[kept],
            self._kind[kept],
            self._bytes[kept],
        )
        self._generation, self._since_ns = self._generation[kept], self._since_ns[kept]
        self._born_ns, self._known = self._born_ns[kept], self._known[kept]


def _moved(
    addresses: NDArray[np.uint64], survivors: list[NDArray[np.uint64]]
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Whether each address is in a surviving range, and its new address."""
    if not survivors or not len(addresses):
        return np.zeros(len(addresses), np.bool_), addresses
    ranges = np.concatenate(survivors)
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    row = np.searchsorted(ranges[:, 0], addresses, side="right") - 1
    around = ranges[np.maximum(row, 0)]
    offset = addresses - around[:, 0]
    found = (row >= 0) & (offset < around[:, 2])
    return found, np.where(found, around[:, 1] + offset, addresses)
