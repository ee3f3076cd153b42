"""Sampled objects, followed through collections."""

from __future__ import annotations

import struct

from bpfleakd.runtimes.dotnet.nettrace import Event
from bpfleakd.runtimes.dotnet.survivors import SampledSurvivors

from .streams import RUNTIME, text

S = 1_000_000_000
FILL, RENDER = (0x100, 0x900), (0x200, 0x900)


class Heap:
    """Writes the events of a small heap."""

    def __init__(self) -> None:
        self.survivors = SampledSurvivors()
        self.now_ns = S
        self.collections = 0

    def event(self, number: int, payload: bytes, version: int = 0, stack: tuple[int, ...] = ()) -> None:
        self.now_ns += S
        self.survivors.take([Event(RUNTIME, number, version, self.now_ns, stack, payload)])

    def allocate(
        self, kind: str, address: int, stack: tuple[int, ...], *, large: bool = False, amount: int = 100_000
    ) -> None:
        head = struct.pack("<IIHQQ", 0, int(large), 8, amount, 0x42)
        self.event(10, head + text(kind) + struct.pack("<IQ", 0, address), 3, stack)

    def begin(self, depth: int, *, background: bool = False) -> int:
        self.collections += 1
        self.event(1, struct.pack("<IIIIHQ", self.collections, depth, 0, int(background), 8, 0), 2)
        return self.collections

    def stays(self, *ranges: tuple[int, int]) -> None:
        rows = b"".join(struct.pack("<QQ", *one) for one in ranges)
        self.event(21, struct.pack("<IIH", 0, len(ranges), 8) + rows)

    def moves(self, *ranges: tuple[int, int, int]) -> None:
        rows = b"".join(struct.pack("<QQQ", *one) for one in ranges)
        self.event(22, struct.pack("<IIH", 0, len(ranges), 8) + rows)

    def end(self, number: int) -> None:
        self.event(2, struct.pack("<IIH", number, 0, 8), 1)

    def retained(self) -> dict[str, tuple[int, int]]:
        return {one.type: (one.live_bytes, one.samples) for one in self.survivors.retained()}


def test_who_survives_is_followed_to_its_new_place() -> None:
    """Others are dropped: garbage of the same time, and later the survivor itself."""
    heap = Heap()
    heap.allocate("Order", 0x10_0040, FILL)
    heap.allocate("Page", 0x10_0100, RENDER)
    assert heap.retained() == {}
    number = heap.begin(0)
    heap.moves((0x10_0000, 0x8000, 0x80))
    heap.end(number)
    assert heap.retained() == {"Order": (100_000, 1)}
    (one,) = heap.survivors.retained()
    assert one.stack == FILL

    number = heap.begin(1)
    heap.stays((0x8000, 0x80))
    heap.end(number)
    assert heap.retained() == {"Order": (100_000, 1)}

    number = heap.begin(2)
    heap.stays((0x8080, 0x80))
    heap.end(number)
    assert heap.retained() == {}


def test_a_young_collection_says_nothing_of_old_objects() -> None:
    """Neither that a large one is alive, nor that it is dead."""
    heap = Heap()
    heap.allocate("byte[]", 0x10_0040, FILL, large=True)
    number = heap.begin(1)
    heap.end(number)
    assert heap.retained() == {}
    number = heap.begin(2)
    heap.stays((0x10_0040, 0x80))
    heap.end(number)
    assert heap.retained() == {"byte[]": (100_000, 1)}
    number = heap.begin(1)
    heap.end(number)
    assert heap.retained() == {"byte[]": (100_000, 1)}
    number = heap.begin(2)
    heap.end(number)
    assert heap.retained() == {}


def test_background_collections_do_not_make_young_garbage_stay() -> None:
    """They cover the oldest generation only: survivors of a young collection are not confirmed by them."""
    heap = Heap()
    heap.allocate("leaked", 0x1000, FILL, large=True)
    heap.allocate("Page", 0x10_0000, RENDER)
    number = heap.begin(0)
    heap.moves((0x10_0000, 0x9000, 0x40))
    heap.end(number)
    for _collection in range(5):
        # It lives for less than a second: the collection that began before says nothing of it.
        number = heap.begin(2, background=True)
        heap.allocate("buffer", 0x5000, RENDER, large=True)
        heap.stays((0x1000, 0x100))
        heap.end(number)
    assert heap.survivors.proofs
    assert heap.retained() == {"leaked": (100_000, 1)}
    # The first collection of generation 1 makes it old. The next full one finds it dead or alive.
    number = heap.begin(1)
    heap.stays((0x9000, 0x40))
    heap.end(number)
    number = heap.begin(2, background=True)
    heap.stays((0x1000, 0x100), (0x9000, 0x40))
    heap.end(number)
    assert heap.retained() == {"leaked": (100_000, 1), "Page": (100_000, 1)}


def test_a_background_collection_that_sweeps_young_generations() -> None:
    """It frees the memory of garbage there. A later object at the same address is not the sampled one."""
    heap = Heap()
    heap.allocate("Page", 0x10_0100, RENDER)
    heap.allocate("Order", 0x10_0400, FILL)
    number = heap.begin(2, background=True)
    heap.stays((0x10_0000, 0x40), (0x10_0400, 0x40))
    heap.end(number)
    for _collection in range(3):
        # Another object lies where the page was, and begins before it.
        number = heap.begin(2, background=True)
        heap.stays((0x10_0000, 0x200), (0x10_0400, 0x40))
        heap.end(number)
    assert heap.survivors.proofs
    assert heap.retained() == {"Order": (100_000, 1)}
    # It is as young as it was: the next collection of the youngest generation decides.
    number = heap.begin(0)
    heap.end(number)
    assert heap.retained() == {}


def test_what_a_full_collection_finds_alive_too_early_is_not_said_to_stay() -> None:
    """It may be in flight: six seconds later it counts."""
    heap = Heap()
    heap.allocate("Order", 0x10_0000, FILL)
    for _second in range(5):
        heap.allocate("Page", 0x20_0000, RENDER)
    number = heap.begin(2)
    heap.stays((0x10_0000, 0x40), (0x20_0000, 0x40))
    heap.end(number)
    assert heap.retained() == {"Order": (100_000, 1)}
    for _collection in range(3):
        number = heap.begin(2)
        heap.stays((0x10_0000, 0x40), (0x20_0000, 0x40))
        heap.end(number)
    assert heap.retained() == {"Order": (100_000, 1), "Page": (500_000, 5)}


def test_a_full_collection_before_any_sample_is_old_enough() -> None:
    """What survived is still shown, unproven: with nothing to show, nobody knew who makes the heap grow."""
    heap = Heap()
    heap.event(99, b"")
    for _second in range(5):
        heap.event(99, b"")
    heap.allocate("Order", 0x10_0000, FILL)
    number = heap.begin(2)
    heap.stays((0x10_0000, 0x40))
    heap.end(number)
    assert heap.survivors.proofs
    assert [(one.type, one.is_proven) for one in heap.survivors.retained()] == [("Order", False)]
    for _collection in range(2):
        number = heap.begin(2)
        heap.stays((0x10_0000, 0x40))
        heap.end(number)
    assert [(one.type, one.is_proven) for one in heap.survivors.retained()] == [("Order", True)]


def test_a_background_collection_between_others() -> None:
    """It covers what was old when it began; the other collections cover young objects."""
    heap = Heap()
    heap.allocate("old", 0x1000, FILL, large=True)
    heap.allocate("dead", 0x2000, FILL, large=True)
    background = heap.begin(2, background=True)
    heap.allocate("young", 0x10_0000, RENDER)
    young = heap.begin(0)
    heap.moves((0x10_0000, 0x9000, 0x40))
    heap.end(young)
    heap.stays((0x1000, 0x100))
    heap.end(background)
    assert heap.retained() == {"old": (100_000, 1), "young": (100_000, 1)}


def test_a_background_collection_that_moves_objects_is_none() -> None:
    """The first one, whose thread has not started yet, covers the young objects, too."""
    heap = Heap()
    heap.allocate("Order", 0x10_0040, FILL)
    heap.allocate("Page", 0x10_0100, RENDER)
    number = heap.begin(2, background=True)
    heap.moves((0x10_0000, 0x8000, 0x80))
    heap.end(number)
    assert heap.retained() == {"Order": (100_000, 1)}
    # The address now belongs to another object.
    number = heap.begin(0)
    heap.moves((0x10_0100, 0x9000, 0x80))
    heap.end(number)
    assert heap.retained() == {"Order": (100_000, 1)}


def test_a_collection_whose_beginning_is_missing() -> None:
    """Young samples from before its end are dropped, because their state is unknown."""
    heap = Heap()
    heap.allocate("Page", 0x10_0100, RENDER)
    heap.end(7)
    number = heap.begin(0)
    heap.moves((0x10_0100, 0x9000, 0x80))
    heap.end(number)
    assert heap.retained() == {}


def test_a_collection_whose_end_is_missing() -> None:
    """It is over when the next one begins, and takes none of its survivors."""
    heap = Heap()
    heap.allocate("byte[]", 0x1000, FILL, large=True)
    heap.begin(1)
    background = heap.begin(2, background=True)
    heap.stays((0x1000, 0x100))
    heap.end(background)
    assert heap.retained() == {"byte[]": (100_000, 1)}


def test_ten_times_as_much_garbage() -> None:
    """The verdict names the method that fills the dictionary, by type and stack."""
    heap = Heap()
    address = 0x10_0000
    for _collection in range(10):
        kept = []
        for _order in range(3):
            heap.allocate("Order", address, FILL)
            kept.append((address, address, 0x40))
            address += 0x1000
            for _page in range(10):
                heap.allocate("Page", address, RENDER)
                address += 0x1000
        number = heap.begin(0)
        heap.moves(*kept)
        heap.end(number)
    assert heap.retained() == {"Order": (3_000_000, 30)}


def test_a_ring_whose_entries_grow_old_before_they_die() -> None:
    """Between two full collections they fill the old generation as a leak does, but they do not grow."""
    heap = Heap()
    leaked: list[int] = []
    ring: list[int] = []
    address = 0x10_0000
    for round_number in range(12):
        for _step in range(4):
            heap.allocate("Viewer", address, FILL)
            leaked.append(address)
            heap.allocate("Page", address + 0x1000, RENDER)
            ring.append(address + 0x1000)
            address += 0x2000
        alive = leaked + ring[-6:]
        depth = 2 if round_number == 9 else round_number % 2
        number = heap.begin(depth)
        heap.stays(*((one, 0x40) for one in alive))
        heap.end(number)
        if round_number == 8:
            assert not any(one.is_proven for one in heap.survivors.retained())
    growth = {one.type: one.growth_bytes_per_s for one in heap.survivors.retained() if one.is_proven}
    assert growth["Page"] == 0
    passed_s = (heap.now_ns - heap.survivors.began_ns) / S
    assert abs(growth["Viewer"] * passed_s / (len(leaked) * 100_000) - 1) < 0.1


def test_more_samples_than_are_kept() -> None:
    """Every second one is followed, for two."""
    heap = Heap()
    for number in range(50_000):
        heap.allocate("Order", 0x1000 + 0x100 * number, FILL, amount=1_000)
    number = heap.begin(0)
    heap.stays((0, 1 << 40))
    heap.end(number)
    ((live_bytes, samples),) = heap.retained().values()
    assert samples <= 20_000
    assert abs(live_bytes - 50_000_000) < 1_000_000
