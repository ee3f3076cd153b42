"""Call sites that open descriptors: what the programs recorded, compared with a made-up /proc."""

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
    """What the programs have recorded: number → (stack, when). It is its own table for another thread."""

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
    """A process that opens and closes; what it closes is in the table until the daemon looks."""

    def __init__(self, proc: Path, clock: Clock) -> None:
        self.fds = proc / "23" / "fd"
        self.fds.mkdir(parents=True)
        self.clock = clock
        self.table = RecordedTable()
        self.opened: dict[int, int] = {}
        self.sites = DescriptorSites(PROCESS, 45.0, proc)
        self.jobs = Background("test", 1)

    def open(self, number: int, stack: int, target: str = "pipe:[1]") -> None:
        (self.fds / str(number)).symlink_to(target)
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
    """Nor is anything read."""
    program.open(3, FETCH)
    program.look()
    assert program.sites.sites() == ()


def test_one_site_leaks_and_another_closes_what_it_opens(program: Program) -> None:
    """What leaks is first, with its rate; a descriptor closed unseen is not counted, nor does it stay."""
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
