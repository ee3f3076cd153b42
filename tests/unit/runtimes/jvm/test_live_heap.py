"""What collections leave alive, by the counters of each collector."""

from __future__ import annotations

from collections.abc import Sequence

from bpfleakd.model.runtimes.managed import AreaKind, RuntimeArea
from bpfleakd.runtimes.jvm.live_heap import JavaLiveHeap
from bpfleakd.runtimes.runtime import LiveHeap

MIB = 1 << 20
G1 = ("G1 young collection pauses", "G1 full collection pauses", "G1 concurrent cycle pauses")


class Machine:
    """Counters of a machine with this collector."""

    def __init__(self, names: Sequence[str]) -> None:
        self.counters: dict[str, int | str] = {
            f"sun.gc.collector.{number}.name": name for number, name in enumerate(names)
        }
        self.counters |= {f"sun.gc.collector.{number}.invocations": 0 for number in range(len(names))}
        self.counters |= {f"sun.gc.generation.{number}.capacity": 100 * MIB for number in range(2)}
        self.set(old=0, survivors=0)

    def set(self, *, old: int, survivors: int = 0) -> None:
        """Bytes in use as of the last collection."""
        self.counters["sun.gc.generation.1.space.0.used"] = old
        self.counters["sun.gc.generation.0.space.1.used"] = survivors

    def collect(self, number: int, *, old: int, times: int = 1) -> None:
        """Collections by one of the collectors."""
        count = self.counters[f"sun.gc.collector.{number}.invocations"]
        assert isinstance(count, int)
        self.counters[f"sun.gc.collector.{number}.invocations"] = count + times
        self.set(old=old)

    def read(self, names: Sequence[str]) -> dict[str, int | str]:
        return {name: self.counters[name] for name in names if name in self.counters}


def test_growth_without_a_collection_is_nothing() -> None:
    """Counters that stay as they are, whatever the heap does."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    assert [heap.read(second) for second in range(10)] == [()] * 10
    assert (heap.watched_since_ns, heap.failure) == (0, None)


def test_a_young_collection_leaves_that_much_at_most() -> None:
    """Old generation and survivors."""
    machine = Machine(("Serial young collection pauses", "Serial full collection pauses"))
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(0, old=5 * MIB)
    machine.set(old=5 * MIB, survivors=MIB)
    assert heap.read(2) == [LiveHeap(2, 6 * MIB, 1, is_full=False)]


def test_a_full_collection_tells_exactly() -> None:
    """Of two collections between two readings the last one is shown, and both are counted."""
    machine = Machine(("Parallel young collection pauses", "Parallel full collection pauses"))
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(0, old=50 * MIB)
    machine.collect(1, old=7 * MIB)
    assert heap.read(2) == [LiveHeap(2, 7 * MIB, 2, is_full=True)]


def test_g1_is_believed_when_it_has_collected_what_it_marked() -> None:
    """All but the garbage that G1 tolerates was certainly alive."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(0, old=120 * MIB)
    machine.collect(2, old=120 * MIB, times=2)
    assert [one.is_full for one in heap.read(2)] == [False]
    machine.collect(0, old=90 * MIB)
    assert [one.is_full for one in heap.read(3)] == [False]  # it continues to collect old regions
    machine.collect(0, old=90 * MIB)
    least_bytes = round(0.85 * 90 * MIB - 0.05 * 200 * MIB)
    assert heap.read(4) == [LiveHeap(4, 90 * MIB, 5, is_full=True, least_bytes=least_bytes)]
    machine.collect(0, old=95 * MIB)
    assert [one.is_full for one in heap.read(5)] == [False]


def full_collections(heap: JavaLiveHeap, machine: Machine, olds: Sequence[int]) -> list[bool]:
    """Whether each of some young collections, which leave this many MiB, reports a full one."""
    found = []
    for at_ns, old in enumerate(olds, 3):
        machine.collect(0, old=old * MIB)
        found.append(any(one.is_full for one in heap.read(at_ns)))
    return found


def test_g1_is_not_believed_before_it_collects_what_it_marked() -> None:
    """The collection after the cleanup only prepares the mixed ones; old objects may be garbage then."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(2, old=120 * MIB, times=2)
    heap.read(2)
    assert (
        full_collections(heap, machine, [121, 60, 20, 22, 23, 24, 25]) == [False] * 3 + [True] + [False] * 3
    )


def test_g1_finds_nothing_worth_collecting() -> None:
    """Then no collection lets the old generation fall, and all of it was alive."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(2, old=120 * MIB, times=2)
    heap.read(2)
    assert full_collections(heap, machine, [121, 122, 123, 124]) == [False, False, True, False]


def test_g1_marks_for_a_long_time() -> None:
    """Between its two pauses the old generation grows by garbage, through many young collections."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(2, old=120 * MIB)
    heap.read(2)
    assert not any(full_collections(heap, machine, range(120, 140)))
    machine.collect(2, old=140 * MIB)
    heap.read(30)
    assert full_collections(heap, machine, [141, 50, 51]) == [False, False, True]


def test_g1_marks_again_and_again() -> None:
    """A heap that is nearly full: the least of some readings is what such collections leave."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    found = []
    for at_ns, old in enumerate([80, 95, 84, 90, 99, 92, 97, 96], 2):
        machine.collect(2, old=old * MIB, times=2)
        machine.collect(0, old=old * MIB, times=2)
        found += [(at_ns, one.least_bytes) for one in heap.read(at_ns) if one.is_full]
    assert found == [
        (at_ns, round(0.85 * least * MIB - 0.05 * 200 * MIB)) for at_ns, least in ((5, 80), (8, 92))
    ]


def test_g1_of_which_the_pauses_before_are_unknown() -> None:
    """After a full collection before the attach the first pause may be either one."""
    machine = Machine(G1)
    machine.collect(1, old=10 * MIB)
    machine.collect(2, old=10 * MIB)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(2, old=120 * MIB)
    heap.read(2)
    assert not any(full_collections(heap, machine, range(120, 140)))


def test_a_full_collection_ends_a_marking_of_g1() -> None:
    """The next pause is the first one of another marking."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(2, old=120 * MIB)
    heap.read(2)
    machine.collect(1, old=10 * MIB)
    assert [one.is_full for one in heap.read(3)] == [True]
    machine.collect(2, old=20 * MIB)
    heap.read(4)
    assert not any(full_collections(heap, machine, range(20, 30)))


def test_zgc_tells_what_is_used_at_most() -> None:
    """Nothing confirms a leak there."""
    machine = Machine(("Z young", "Z old", "Z concurrent cycle pauses"))
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(1, old=10 * MIB)
    assert [one.is_full for one in heap.read(2)] == [False]


def test_shenandoah_tells_what_is_used_at_most() -> None:
    """It calls each of its concurrent collections a full one."""
    machine = Machine(("Shenandoah partial", "Shenandoah full"))
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    machine.collect(1, old=27 * MIB, times=3)
    assert heap.read(2) == [LiveHeap(2, 27 * MIB, 3, is_full=False)]


def test_the_metaspace() -> None:
    """None from a machine that does not count it."""
    machine = Machine(G1)
    heap = JavaLiveHeap(machine.read)
    heap.read(1)
    assert heap.metaspace is None
    machine.counters |= {"sun.gc.metaspace.used": 3 * MIB, "sun.gc.metaspace.capacity": 4 * MIB}
    heap.read(2)
    assert heap.metaspace == RuntimeArea(AreaKind.METASPACE, 3 * MIB, 4 * MIB)


def test_a_machine_without_counters() -> None:
    """The reason is stated."""

    def read(_names: Sequence[str]) -> dict[str, int | str]:
        raise ValueError("it keeps no counters (-XX:-UsePerfData)")

    heap = JavaLiveHeap(read)
    assert heap.read(1) == ()
    assert heap.failure == "it keeps no counters (-XX:-UsePerfData)"
    assert (heap.watched_since_ns, heap.heap_bytes()) == (None, None)
