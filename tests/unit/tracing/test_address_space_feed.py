"""Each event is processed once, whenever the daemon is killed, and released once it is saved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.kernel.address_space_events import AddressSpaceEvent, Syscall
from bpfleakd.tracing.address_space import feed
from bpfleakd.tracing.address_space.address_maps import AddressMaps
from bpfleakd.tracing.address_space.feed import AddressSpaceFeed

from .doubles import Clock, FakeRecord

PIDS = (23, 101)
PAGE = 4096
EVENT_BYTES = 136
RING_BYTES = 64 * EVENT_BYTES


class Ring:
    """The ring in the kernel, which outlives daemons; `position` is the reader's and does not."""

    def __init__(self) -> None:
        self.events: list[AddressSpaceEvent] = []
        self.released = self.position = 0

    def put(self, pid: int, start: int, pages: int, *, mapped: bool) -> None:
        syscall = Syscall.MMAP if mapped else Syscall.MUNMAP
        arguments = (start, pages * PAGE, 3, 0x22, 0, 0)
        position = len(self.events) * EVENT_BYTES
        self.events.append(
            AddressSpaceEvent(
                position, 7, arguments, start, 0, pid, pid, syscall, not mapped, False, position
            )
        )

    def space_events(self) -> Iterator[AddressSpaceEvent]:
        while self.position < len(self.events) * EVENT_BYTES:
            event = self.events[self.position // EVENT_BYTES]
            self.position += EVENT_BYTES
            yield event

    @property
    def space_position(self) -> int:
        return self.position

    @property
    def space_unreleased_share(self) -> float:
        return (self.position - self.released) / RING_BYTES

    def release_space_events(self) -> None:
        self.released = self.position


def no_arena(_pid: int, _size_bytes: int, _stack_id: int) -> bool:
    return False


class Killed(Exception):
    """The daemon is, here."""


class CheckpointBlob(FakeRecord):
    """A record whose daemon may be killed before it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.killed_at = -1

    def write(self, text: bytes) -> None:
        if self.killed_at == 0:
            raise Killed
        self.killed_at -= 1
        super().write(text)


class Daemon:
    """Maps and feed of one daemon, over a ring and records that were there before it."""

    def __init__(self, ring: Ring, records: dict[int, CheckpointBlob], clock: Clock) -> None:
        self.spaces = AddressMaps(lambda _event: False, no_arena)
        self.feed = AddressSpaceFeed(ring, self.spaces, clock)
        ring.position = ring.released
        for pid, record in records.items():
            if record.text is None:
                self.spaces.follow(pid, ())
                self.feed.keep(pid, record)
            else:
                self.feed.restore(pid, record)  # type: ignore[arg-type]

    def maps(self) -> dict[int, object]:
        return {pid: replace(self.spaces.checkpoint(pid, 0, stale=False), broken=False) for pid in PIDS}


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["map", "unmap", "read", "killed", "killed in a save"]),
        st.sampled_from(PIDS),
        st.integers(0, 30),
        st.integers(1, 9),
    ),
    max_size=60,
)


@given(steps=_STEPS)
def test_every_report_once(steps: list[tuple[str, int, int, int]]) -> None:
    """The maps are those of a daemon that was never killed."""
    ring, clock = Ring(), Clock()
    records = {pid: CheckpointBlob() for pid in PIDS}
    daemon = Daemon(ring, records, clock)
    daemon.feed.save()
    for step, pid, first, pages in steps:
        match step:
            case "map" | "unmap":
                ring.put(pid, first * PAGE, pages, mapped=step == "map")
            case "read":
                clock.go_on(1)
                daemon.feed.read()
            case "killed":
                daemon = Daemon(ring, records, clock)
            case "killed in a save":
                records[pid].killed_at = 0
                try:
                    daemon.feed.read()
                    daemon.feed.save()
                except Killed:
                    pass
                for record in records.values():
                    record.killed_at = -1
                daemon = Daemon(ring, records, clock)
    daemon.feed.read()

    never_killed = Ring()
    never_killed.events = ring.events
    expected = Daemon(never_killed, {pid: CheckpointBlob() for pid in PIDS}, clock)
    expected.feed.read()
    assert daemon.maps() == expected.maps()


def test_room_is_given_back_when_the_maps_are_written_down() -> None:
    """Not before, and not later than at a quarter of the ring."""
    ring, clock, record = Ring(), Clock(), CheckpointBlob()
    daemon = Daemon(ring, {23: record}, clock)
    daemon.feed.save()
    daemon.feed._due_ns = clock.now_ns + 1  # as after a costly save
    for number in range(4):
        ring.put(23, number * PAGE, 1, mapped=True)
    before = record.text
    daemon.feed.read()
    assert (ring.released, record.text) == (0, before)

    for number in range(20):
        ring.put(23, number * PAGE, 1, mapped=True)
    daemon.feed.read()
    assert ring.released == ring.position
    assert record.text != before


def test_a_record_that_cannot_be_written_is_removed() -> None:
    """An old one would be taken as current; without one, the next daemon starts over."""
    ring, clock = Ring(), Clock()

    class Full(FakeRecord):
        def write(self, text: bytes) -> None:
            raise OSError(12, "Cannot allocate memory")

    record = Full()
    record.text = b"old"
    spaces = AddressMaps(lambda _event: False, no_arena)
    feed = AddressSpaceFeed(ring, spaces, clock)
    spaces.follow(23, ())
    feed.keep(23, record)
    feed.save()
    assert record.text is None
    feed.save()


def test_a_map_too_large_to_be_written_at_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written now and then, as one that has to be repaired."""
    monkeypatch.setattr(feed, "_PIECES_MAX", 2)
    ring, clock, record = Ring(), Clock(), CheckpointBlob()
    daemon = Daemon(ring, {23: record}, clock)

    def after_mapping(number: int) -> bytes | None:
        ring.put(23, 3 * number * PAGE, 1, mapped=True)
        clock.go_on(1)
        daemon.feed.read()
        return record.text

    texts = [after_mapping(number) for number in range(6)]
    assert texts[2] == texts[3] == texts[5]
    clock.go_on(60)
    assert after_mapping(7) != texts[2]
    broken = Daemon(ring, {23: record}, clock)
    assert broken.spaces.checkpoint(23, 0, stale=False).broken
