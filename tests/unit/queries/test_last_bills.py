"""When bills are made for the case of an OOM kill."""

from __future__ import annotations

from structlog.testing import capture_logs

from bpfleakd import errors
from bpfleakd.model.address_space import BillKind, BillLine
from bpfleakd.model.process import ProcessId
from bpfleakd.queries.last_bills import LastBills

MIB = 1 << 20
SHOP = ProcessId(4711, 8_009)


class World:
    """A clock, bills that take 10 ms each, how many there were, and how much memory is left."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.made = 0
        self.room = 0
        self.waited_ns = self.late_ns = 0
        self.bills = LastBills(
            0.01, lambda: self.now_ns, lambda _process: self.room, lambda: self.waited_ns
        )

    def note(self, anonymous_bytes: int, process: ProcessId = SHOP, *, pause_ns: int = 500_000_000) -> None:
        self.now_ns += pause_ns
        self.bills.note(process, anonymous_bytes, self._make)

    def _make(self):
        self.made += 1
        self.waited_ns += self.late_ns
        self.now_ns += 10_000_000 + self.late_ns
        return (BillLine(BillKind.HEAP_LIVE, self.made, None),), None


def test_a_bill_is_made_when_the_memory_has_changed_by_a_tenth():
    """In both directions; the last one counts, with its time and memory."""
    world = World()
    for size in (1, 40, 41, 43, 44, 45, 39):
        for _pause in range(3):  # the time of the last one is paid for by then
            world.note(size * MIB)
    assert world.made == 3
    bill = world.bills.take(SHOP)
    assert bill is not None
    assert (bill.lines[0].bytes, bill.anonymous_bytes) == (3, 39 * MIB)
    assert world.bills.take(SHOP) is None


def test_bills_take_a_small_part_of_the_time():
    """One of 10 ms a second, whatever the process does slowly."""
    world = World()
    for step in range(20):
        world.note(int(40 * 1.15**step) * MIB)
    assert world.made == 10


def test_a_busy_machine_makes_bills_late_but_not_rare():
    """Waiting for a core does not count."""
    world = World()
    world.late_ns = 400_000_000
    for step in range(20):
        world.note(int(40 * 1.15**step) * MIB)
    assert world.made == 10


def test_a_process_that_has_grown_by_half_gets_a_bill_at_once():
    """And one that shrinks in between gets no more of them for that."""
    world = World()
    for size in (40, 60, 40, 60, 40, 60, 90):
        world.note(size * MIB, pause_ns=1_000_000)
    assert world.made == 3


def test_a_process_far_from_its_limit_waits_for_its_turn():
    """One that gains 20 MiB in 0.1 s may use up 360 MiB in the 0.9 s until it is due."""
    for room_mib, made in ((380, 1), (340, 2)):
        world = World()
        world.room = room_mib * MIB
        world.note(40 * MIB)
        world.note(60 * MIB, pause_ns=90_000_000)
        assert world.made == made
    world.note(90 * MIB, pause_ns=2_000_000_000)
    assert world.made == 3


def test_a_first_bill_does_not_wait_for_those_of_others():
    """One that has grown by half since it was seen first gets one at once; others wait for their turn."""
    world = World()
    world.note(40 * MIB)
    for other, size in ((ProcessId(29, 1), 3 * MIB), (ProcessId(31, 1), 50 * MIB)):
        world.note(size, other, pause_ns=0)
        assert world.bills.get(other) is None
    world.note(6 * MIB, ProcessId(29, 1), pause_ns=0)
    world.note(74 * MIB, ProcessId(31, 1), pause_ns=0)
    assert world.bills.take(ProcessId(29, 1)).anonymous_bytes == 6 * MIB
    assert "used up the time" in world.bills.missing(ProcessId(31, 1))
    assert world.bills.take(ProcessId(31, 1)) is None


def test_those_that_grow_by_half_have_a_reserve():
    """A second of bills at once; then a tenth of the time."""
    world = World()
    world.note(40 * MIB)
    for pid in range(1, 201):
        world.note(4 * MIB, ProcessId(pid, 1), pause_ns=0)
        world.note(8 * MIB, ProcessId(pid, 1), pause_ns=0)
    assert 100 < world.made <= 115
    made = world.made
    for pid in range(301, 501):
        world.note(4 * MIB, ProcessId(pid, 1), pause_ns=5_000_000)
        world.note(8 * MIB, ProcessId(pid, 1), pause_ns=5_000_000)
    assert 20 <= world.made - made <= 25


def test_why_there_is_no_bill():
    """Each reason, and none when there is a bill of the last change."""
    world = World()
    missing = world.bills.missing
    assert missing(SHOP) == "its memory had not been read before"
    world.note(3 * MIB)
    assert missing(SHOP) == "it had less than 4.00 MiB of anonymous memory when it was last read"

    def silent():
        raise errors.NotYet("its memory does not answer")

    with capture_logs() as logs:
        for _ in range(3):
            world.now_ns += 2_000_000_000
            world.bills.note(SHOP, 40 * MIB, silent)
    assert missing(SHOP) == "its memory does not answer"
    assert [(event["event"], event["pid"]) for event in logs] == [("process.bill-not-made", SHOP.pid)]
    world.note(40 * MIB)
    assert missing(SHOP) is None
    world.note(50 * MIB)
    assert "used up the time" in missing(SHOP)
    assert world.bills.get(SHOP).anonymous_bytes == 40 * MIB


def test_a_process_that_ends_meanwhile_keeps_its_last_bill():
    """A failed reading is not a bill."""
    world = World()
    world.note(40 * MIB)
    world.now_ns += 2_000_000_000

    def gone():
        raise errors.NoSuchProcess("it has ended")

    world.bills.note(SHOP, 80 * MIB, gone)
    assert world.bills.take(SHOP).anonymous_bytes == 40 * MIB


def test_only_so_many_are_kept():
    """The oldest goes."""
    world = World()
    for pid in range(1, 302):
        world.note(40 * MIB, ProcessId(pid, 1))
        world.now_ns += 2_000_000_000
    kept = [pid for pid in range(1, 302) if world.bills.take(ProcessId(pid, 1))]
    assert kept == list(range(46, 302))
