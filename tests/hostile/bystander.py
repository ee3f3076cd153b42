"""A traced program of root that takes no part: its counts, its code and the answers must not suffer.

Attackers, other tests and other people use the processors, too. So what an answer took is counted without the
time in which the daemon, or who asks, was ready and another was running (schedstat of the kernel); and a tick
may take so much time of a processor.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bpfleakd.api.client import DaemonClient
from bpfleakd.elf.image import ElfImage

from ..kernel.daemons import Daemon
from ..kernel.truth import expect_ledger
from ..kernel.waiting import PATIENCE, wait_until
from ..kernel.workloads import Workload

SLOWEST_ANSWER_S = 1.0
MEDIAN_ANSWER_S = 0.1
# All answers of a short attack fall into its worst second: their median says no more than the slowest one.
_ANSWERS_FOR_A_MEDIAN = 20
LONGEST_TICK_S = 0.5
# Compare memory only after caches for the next process have been dropped or have settled.
MEMORY_SHARE = 0.10
_MEMORY_NOISE_BYTES = 4 << 20


@dataclass
class Bystander:
    """A daemon and a program that it traces."""

    tracer: Daemon
    program: Workload
    answers_s: list[float] = field(default_factory=list)
    ticks_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    walls_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tracer.attach_with_tables(self.program.pid)
        self.client = DaemonClient(self.tracer.socket)
        self.program.step(23)
        self.tracer.top_after_tick(self.program.pid)
        self.resident_before = resident_bytes(self.tracer.pid)

    @contextmanager
    def during_attack(self) -> Iterator[None]:
        """Work, and query the daemon every few milliseconds, while the attack runs in the body."""
        over = threading.Event()
        asking = threading.Thread(target=self._ask_until, args=(over,))
        asking.start()
        try:
            yield
        finally:
            over.set()
            asking.join()

    def check(self) -> None:
        """Fail if any figure of a bystander was affected."""
        self.program.step(23)
        report = self.tracer.top_after_tick(self.program.pid)
        expect_ledger(report, self.program.ledger())
        if self.answers_s:
            assert max(self.answers_s) <= SLOWEST_ANSWER_S * PATIENCE, sorted(self.answers_s)[-5:]
            if len(self.answers_s) >= _ANSWERS_FOR_A_MEDIAN:
                assert statistics.median(self.answers_s) <= MEDIAN_ANSWER_S * PATIENCE
            assert max(self.ticks_s) <= LONGEST_TICK_S * PATIENCE, sorted(self.ticks_s)[-5:]
        self.tracer.detach(self.program.pid)
        wait_until(lambda: not text_differences(self.program.pid))
        assert self.program.step(23)

    def memory_returns(self, timeout_s: float = 30.0) -> None:
        """Wait until the daemon has about as much memory as before the attack."""
        limit_bytes = self.resident_before * (1 + MEMORY_SHARE) + _MEMORY_NOISE_BYTES
        wait_until(lambda: resident_bytes(self.tracer.pid) <= limit_bytes, timeout_s)

    def _ask_until(self, over: threading.Event) -> None:
        while not over.is_set():
            began_s, before = time.monotonic(), self._times_s()
            self.client.processes()
            wall_s, after = time.monotonic() - began_s, self._times_s()
            self.walls_s.append(wall_s)
            running_s, waiting_s = _spent_s(before, after)
            self.answers_s.append(max(0.0, wall_s - waiting_s))
            self.ticks_s.append(running_s / (1 + wall_s))
            self.waits_s.append(self.client.stats().last_tick_s)
            over.wait(0.05)

    def _times_s(self) -> dict[tuple[bool, str], tuple[int, int]]:
        """Times of each thread: of the daemon (True), and of its clients."""
        return {
            (pid == self.tracer.pid, task): times
            for pid in (self.tracer.pid, os.getpid())
            for task, times in _times_of(pid)
        }


def _times_of(pid: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """ns on a processor, and ns ready to run while another did, by thread."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            ran_ns, waited_ns, _slices = map(int, (task / "schedstat").read_text().split())
            yield task.name, (ran_ns, waited_ns)


def _spent_s(
    before: dict[tuple[bool, str], tuple[int, int]], after: dict[tuple[bool, str], tuple[int, int]]
) -> tuple[float, float]:
    """The daemon's CPU time, and the time that it and its clients waited; without threads that ended."""
    running_ns = waiting_ns = 0
    for thread, (ran_ns, waited_ns) in after.items():
        ran_before_ns, waited_before_ns = before.get(thread, (0, 0))
        waiting_ns += waited_ns - waited_before_ns
        if thread[0]:
            running_ns += ran_ns - ran_before_ns
    return running_ns / 1e9, waiting_ns / 1e9


def resident_bytes(pid: int) -> int:
    """How much memory a process has."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def text_differences(pid: int, proc: Callable[[int], Path] = lambda pid: Path(f"/proc/{pid}")) -> list[int]:
    """The addresses at which the code of a program, in memory, is not that of its file."""
    with ElfImage.open(proc(pid) / "exe") as image:
        text = image.section(".text")
        assert text is not None
        code = bytes(text.data)
        start = _base_of(proc(pid)) + text.vaddr - min(s.vaddr & -4096 for s in image.segments)
    with (proc(pid) / "mem").open("rb", buffering=0) as memory:
        memory.seek(start)
        found = memory.read(len(code))
    return [
        start + place for place, (ours, theirs) in enumerate(zip(code, found, strict=True)) if ours != theirs
    ]


def _base_of(proc: Path) -> int:
    return int((proc / "maps").read_text().partition("-")[0], 16)
