"""No change of a site is missed, in whatever order the programs and the daemon take their steps.

The programs are note_change of bpf/record.h, step by step; the kernel's maps and the ring are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.kernel import abi
from bpfleakd.kernel.sites import reader as site_reader
from bpfleakd.kernel.sites.reader import SiteReader

PID = 4_711
SITES = 12


class World:
    """One process with some sites, as the programs see it and as the reader does."""

    def __init__(self, room: int) -> None:
        self.live_bytes = [0] * SITES
        self.listed = [0] * SITES
        self.reading = 1
        self.unlisted = False
        self.changes: list[tuple[int, int]] = []
        self.room = room
        self.looked_up = 0
        # What the programs do between two steps of the daemon.
        self.meanwhile: Callable[[], None] = lambda: None

    def change(self, site: int) -> Iterator[None]:
        """An allocation at a site; other threads and the daemon may come between its steps."""
        self.live_bytes[site] += 1
        yield
        reading = self.reading
        yield
        if self.listed[site] != reading:
            if len(self.changes) < self.room:
                self.changes.append((site, reading))
            else:
                self.unlisted = True
            yield
            self.listed[site] = reading

    # kernel.process_slots.ProcessSlots

    def begin_reading(self) -> None:
        self.meanwhile()
        self.reading += 1
        self.meanwhile()

    def readings(self, pids: np.ndarray) -> np.ndarray:
        return np.full(len(pids), self.reading, np.uint32)

    def take_unlisted(self) -> bool:
        self.meanwhile()
        found, self.unlisted = self.unlisted, False
        return found

    def site_count(self) -> int:
        return SITES

    # kernel.ring.RingReader

    def rows(self, _layout: np.dtype) -> np.ndarray:
        self.meanwhile()
        taken, self.changes = self.changes, []
        rows = np.zeros(len(taken), abi.CHANGED_SITE)
        rows["tgid"] = PID
        rows["stack_id"], rows["reading"] = zip(*taken, strict=True) if taken else ((), ())
        return rows

    def release(self) -> None:
        pass

    # kernel.bpf

    def map_lookup_many(self, _fd: int, keys: np.ndarray, _type: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        self.looked_up += 1
        sites = np.zeros(len(keys), abi.SITE)
        for index, site in enumerate(keys["stack_id"].tolist()):
            self.meanwhile()
            sites["live_bytes"][index] = self.live_bytes[site]
        return np.ones(len(keys), bool), sites

    def map_batches(self, *_: object) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        keys, sites = np.zeros(1, abi.SITE_KEY), np.zeros(1, abi.SITE)
        keys["tgid"] = PID
        for site in range(SITES):
            self.meanwhile()
            keys["stack_id"], sites["live_bytes"] = site, self.live_bytes[site]
            yield keys, sites


@settings(max_examples=200, deadline=None)
@given(
    room=st.sampled_from([0, 1, 100]),
    # For two sites, so several threads change the same ones, and look-ups are one by one.
    changes=st.lists(st.integers(0, 1), min_size=1, max_size=12),
    readings=st.integers(1, 4),
    data=st.data(),
)
def test_every_change_is_read(room: int, changes: list[int], readings: int, data: st.DataObject) -> None:
    """Two readings after the last change, the daemon has the programs' figures."""
    world = World(room)
    threads = [world.change(site) for site in changes]

    def some_steps() -> None:
        for thread in data.draw(st.lists(st.sampled_from(threads), max_size=6)):
            next(thread, None)

    reader = SiteReader(0, world, world)  # type: ignore[arg-type]
    known: dict[int, int] = {}
    with mock.patch.object(site_reader, "bpf", world):
        take_in(reader, known)
        take_in(reader, known)
        world.meanwhile = some_steps
        for _reading in range(readings):
            take_in(reader, known)
        world.meanwhile = lambda: None
        for thread in threads:
            list(thread)
        take_in(reader, known)
        take_in(reader, known)
    assert known == dict(enumerate(world.live_bytes))


def take_in(reader: SiteReader, known: dict[int, int]) -> None:
    keys, sites = reader.read()
    known.update(zip(keys["stack_id"].tolist(), sites["live_bytes"].tolist(), strict=True))


def test_only_what_changed_is_looked_up() -> None:
    """Once all are known; and counts are in blocks."""
    world = World(room=100)
    reader = SiteReader(0, world, world)  # type: ignore[arg-type]
    with mock.patch.object(site_reader, "bpf", world):
        assert len(reader.read()[0]) == SITES
        assert len(reader.read()[0]) == 0
        for site in (7, 3, 7):
            list(world.change(site))
        keys, sites = reader.read()
    assert sorted(keys["stack_id"].tolist()) == [3, 7]
    assert sorted(sites["live_bytes"].tolist()) == [1, 2]
    assert world.looked_up == 2
