"""Call sites that open descriptors: the programs' records, compared with a simulated /proc."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfleakd.kernel import abi
from bpfleakd.model.process import ProcessId
from bpfleakd.model.verdict import Verdict
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.descriptor_sites import DescriptorSites

from .doubles import Clock

PROCESS = ProcessId(23, 4_711)
FETCH, LOG = 0xF, 0x10


class RecordedTable:
    """The programs' records: number → (stack, time). It is its own table for another thread."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[int, int]] = {}

    def open(self, pid: int) -> RecordedTable:
        assert pid == PROCESS.pid
        return self

    def close(self) -> None:
        pass

    def read(self) -> tuple[np.ndarray, np.ndarray]:
        blocks = [(1, 1, born, stack, 23, abi.DESCRIPTOR_KIND) for stack, born in self.entries.values()]
        return np.array(list(self.entries), np.uint64), np.array(blocks, abi.LIVE_BLOCK)

    def forget(self, number: int, born_ns: int) -> None:
        if self.entries[number][1] == born_ns:
            del self.entries[number]


class Program:
    """A process that opens and closes descriptors; closed ones stay in the table until the daemon checks."""

    def __init__(self, proc: Path, clock: Clock) -> None:
        self.fds = proc / "23" / "fd"
        self.fds.mkdir(parents=True)
        self.clock = clock
        self.table = RecordedTable()
        self.opened: dict[int, int] = {}
        self.sites = DescriptorSites(PROCESS, 45.0, proc)
        self.jobs = Background("test", 1)

    def receive(self, number: int, target: str = "pipe:[1]") -> None:
        """A descriptor that the programs do not see come."""
        (self.fds / str(number)).symlink_to(target)

    def open(self, number: int, stack: int, target: str = "pipe:[1]") -> None:
        self.receive(number, target)
        self.table.entries[number] = stack, self.clock.now_ns
        self.opened[stack] = self.opened.get(stack, 0) + 1

    def close(self, number: int) -> None:
        (self.fds / str(number)).unlink()

    def look(self) -> None:
        """A second later."""
        self.clock.go_on(1)
        self.sites.note_opened(list(self.opened), list(self.opened.values()))
        self.sites.read(self.table, self.clock, self.jobs)
        assert self.jobs.do(str(PROCESS), lambda: None, 10.0)
        self.sites.read(self.table, self.clock, self.jobs)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path, Clock())


def test_nothing_is_known_before_it_begins(program: Program) -> None:
    """And nothing is read."""
    program.open(3, FETCH)
    program.look()
    assert program.sites.sites() == ()


def test_one_site_leaks_and_another_closes_what_it_opens(program: Program) -> None:
    """The leaking site comes first, with its rate; a descriptor that was closed unseen is not counted, and
    removed.
    """
    program.sites.begin(program.clock.now_ns)
    for second in range(90):
        program.open(10 + 2 * second, FETCH, "/var/log/app/one")
        program.open(11 + 2 * second, LOG)
        if second >= 3:
            program.close(11 + 2 * (second - 3))
        program.look()
    leak, other = program.sites.sites()
    assert (leak.key.stack_id, leak.open_count, leak.opened_count) == (FETCH, 90, 90)
    assert leak.verdict.verdict is Verdict.LEAK
    assert leak.growth_per_min == pytest.approx(60, rel=0.05)
    assert [share.what for share in leak.shares] == ["files in /var/log/app"]
    assert (other.key.stack_id, other.open_count, other.opened_count) == (LOG, 3, 90)
    assert other.verdict.verdict is not Verdict.LEAK
    assert len(program.table.entries) == 93


def test_what_came_unseen_makes_the_sum_right(program: Program) -> None:
    """Earlier descriptors are separate; the others are counted and judged like a call site."""
    for number in range(3, 10):
        program.receive(number)
    program.sites.begin(program.clock.now_ns)
    program.look()
    for second in range(90):
        program.open(100 + 2 * second, FETCH)
        program.receive(101 + 2 * second, "/srv/received/one")
        if second < 80 and second % 2:
            program.close(100 + 2 * second)
        if second == 40:
            # Received, too, but in the place of one that was there before: it cannot be told from that.
            program.close(3)
            program.receive(3)
            program.close(4)
        program.look()
    for _ in range(2):
        program.look()
    totals = program.sites.totals
    assert totals is not None
    assert totals.open_count == len(list(program.fds.iterdir()))
    assert (totals.recorded_count, totals.earlier_count, totals.other_count) == (50, 6, 90)
    assert totals.other_growth_per_min == pytest.approx(60, rel=0.05)
    assert [share.what for share in totals.other_shares] == ["files in /srv/received"]
    assert totals.other_reason.startswith("90 came by a way that is not recorded (SCM_RIGHTS, io_uring")
    rate = totals.other_growth_per_min
    assert totals.other_reason.endswith(f"+{rate:.0f}/min, 100% files in /srv/received")
    assert [site.key.stack_id for site in program.sites.sites()] == [FETCH]


def test_what_comes_and_goes_between_looks_is_no_other(program: Program) -> None:
    """A number that is open and not recorded in some looks only was opened, or closed, as they were made."""
    program.sites.begin(program.clock.now_ns)
    for second in range(30):
        if second % 3 == 2:
            program.close(7)
        elif second % 3 == 0:
            program.receive(7)
        program.look()
        assert program.sites.totals is not None
        assert program.sites.totals.other_count == 0


def test_it_begins_anew(program: Program) -> None:
    """After the end of the recording nothing is left of it."""
    program.sites.begin(program.clock.now_ns)
    program.open(3, FETCH)
    program.look()
    assert [site.open_count for site in program.sites.sites()] == [1]
    program.sites.end()
    assert program.sites.sites() == ()
    program.table.entries.clear()
    program.sites.begin(program.clock.now_ns)
    program.look()
    assert program.sites.sites() == ()
