"""No change of a site is missed, in whatever order the programs and the daemon take their steps.

The programs are note_change of bpf/record.h, step by step; the kernel's maps are made up, the ring is a file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.kernel import abi, site_reader
from bpfleakd.kernel.ring import RingReader
from bpfleakd.kernel.site_reader import SiteReader

PID = 4_711
SITES = 12
FRAME = np.dtype([("length", "u4"), ("page", "u4"), ("row", abi.CHANGED_SITE)])


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
        # What the programs do while the daemon is between two of its steps.
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
    # Of two sites, so that several threads change the same, and that they are looked up one by one.
    changes=st.lists(st.integers(0, 1), min_size=1, max_size=12),
    readings=st.integers(1, 4),
    data=st.data(),
)
def test_every_change_is_read(room: int, changes: list[int], readings: int, data: st.DataObject) -> None:
    """When the programs have come to rest, two readings later the daemon knows what they know."""
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
    """Once all are known; and counts are of blocks."""
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


@pytest.fixture
def ring_file() -> Iterator[int]:
    fd = os.memfd_create("ring", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4 * mmap.PAGESIZE)
    yield fd
    os.close(fd)


def test_records_are_taken_from_a_ring(ring_file: int) -> None:
    """Also where they go round its end; behind one that is still being written none is read."""
    size = mmap.PAGESIZE
    records = np.zeros(size // FRAME.itemsize + 3, FRAME)
    records["row"]["stack_id"] = np.arange(len(records))
    first, rest = records[:-5], records[-5:]
    with closing(RingReader(ring_file, size)) as ring, mmap.mmap(ring_file, 4 * size) as memory:

        def put(where: int, what: np.ndarray, end: int) -> None:
            for copy in (2 * size, 3 * size):
                for index, record in enumerate(what):
                    at = copy + (where + index * FRAME.itemsize) % size
                    memory[at : at + FRAME.itemsize] = record.tobytes()
            memory[size : size + 8] = end.to_bytes(8, "little")

        put(0, first, first.nbytes)
        assert ring.rows(abi.CHANGED_SITE)["stack_id"].tolist() == first["row"]["stack_id"].tolist()
        ring.release()
        rest["length"][3] = 1 << 31
        put(first.nbytes, rest, records.nbytes)
        assert ring.rows(abi.CHANGED_SITE)["stack_id"].tolist() == rest["row"]["stack_id"][:3].tolist()
        rest["length"][3] = 0
        put(first.nbytes, rest, records.nbytes)
        assert ring.rows(abi.CHANGED_SITE)["stack_id"].tolist() == rest["row"]["stack_id"][3:].tolist()
        ring.release()
        assert int.from_bytes(memory[:8], "little") == records.nbytes
