"""File descriptors and threads of a made-up /proc, and of this process."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from bpfleakd.model.process import ProcessId
from bpfleakd.model.resources import ResourceKind
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.process.process import read_process
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.resource_watch import ResourceWatch

from .doubles import Clock

PROCESS = ProcessId(23, 4_711)
STEADY = ProcessVerdict(Verdict.STEADY, "no call site leaks", 0.0, 0.0, None, None, None, None, None)


class MadeUpProcess:
    """A directory like /proc/23, with this many descriptors and threads."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.directory = proc / "23"
        (self.directory / "fd").mkdir(parents=True)
        self.descriptors = 0
        (self.directory / "limits").write_text("Max open files  1024  4096  files\n")
        self.have(5, 2)

    def have(self, descriptors: int, threads: int, start_ticks: int = PROCESS.start_ticks) -> None:
        for number in range(self.descriptors, descriptors):
            (self.directory / "fd" / str(number)).symlink_to("pipe:[1]" if number < 5 else "/var/log/app/one")
        for number in range(descriptors, self.descriptors):
            (self.directory / "fd" / str(number)).unlink()
        self.descriptors = descriptors
        fields = ["0"] * 20
        fields[17], fields[19] = str(threads), str(start_ticks)
        (self.directory / "stat").write_text(f"23 (a b) {' '.join(fields)}")


@pytest.fixture
def process(tmp_path, monkeypatch) -> MadeUpProcess:
    made_up = MadeUpProcess(tmp_path)
    # The size of a directory on disk says nothing of its entries.
    monkeypatch.setattr(
        "bpfleakd.tracing.resource_watch.count_descriptors", lambda _pid, _proc: made_up.descriptors
    )
    return made_up


def watched(process: MadeUpProcess, course: list[tuple[int, int]], clock: Clock) -> ResourceWatch:
    """A reading every second with this many descriptors and threads."""
    watch = ResourceWatch(PROCESS, clock.now_ns, 45.0, process.proc)
    jobs = Background("test", 1)
    watch.read(clock, jobs)
    for descriptors, threads in course:
        clock.go_on(1)
        process.have(descriptors, threads)
        watch.read(clock, jobs)
        # A reading ends before the next one begins.
        assert jobs.do(str(PROCESS), lambda: None, 10.0)
    return watch


def test_descriptors_that_are_never_closed(process):
    """Their rate, their kind, and the limit, in the verdict on the process."""
    watch = watched(process, [(5 + 2 * second, 2) for second in range(90)], Clock())
    descriptors, threads = watch.uses()
    assert (descriptors.kind, descriptors.verdict) == (ResourceKind.DESCRIPTORS, Verdict.LEAK)
    assert descriptors.growth_per_min == pytest.approx(120, rel=0.05)
    assert [share.what for share in descriptors.shares] == ["files in /var/log/app"]
    assert threads.verdict is not Verdict.LEAK
    verdict = watch.added_to(STEADY)
    assert verdict.verdict is Verdict.LEAK
    assert verdict.reason.startswith("no call site leaks; file descriptors grow: 12")
    assert verdict.reason.endswith(" of at most 1,024)")
    assert "/min, 100% files in /var/log/app (" in verdict.reason
    assert watch.new_leaks() == [descriptors]
    assert watch.new_leaks() == []


@pytest.mark.parametrize(
    "course",
    [
        [(5 + second % 20, 2 + second % 7) for second in range(120)],
        [(5 + second // 12, 2) for second in range(90)],
        [(5 + min(200, 20 * second), 2) for second in range(120)],
    ],
    ids=["come-and-go", "too-few", "a-pool-that-filled"],
)
def test_what_is_no_leak(process, course):
    """Requests that come and go, some files that stay open, a pool of connections that is full."""
    watch = watched(process, course, Clock())
    assert watch.leaks == ()
    assert watch.added_to(STEADY) is STEADY


def test_threads_that_never_end(process):
    """A hundred more, of the same name but for a number."""
    for number in range(20):
        (process.directory / "task" / str(number)).mkdir(parents=True)
        (process.directory / "task" / str(number) / "comm").write_text(f"worker-{number}\n")
    watch = watched(process, [(5, 2 + second) for second in range(90)], Clock())
    (threads,) = watch.leaks
    assert threads.kind is ResourceKind.THREADS
    assert threads.reason.startswith("threads grow: 6")
    assert threads.reason.endswith("/min, 100% named worker-N")


def test_another_process_with_the_pid_is_not_counted(process):
    """Nor one that has ended."""
    process.have(5, 2, start_ticks=1)
    watch = ResourceWatch(PROCESS, 0, 45.0, process.proc)
    watch.read(Clock(), Background("test", 1))
    assert watch.uses() == ()
    assert watch.count(ResourceKind.DESCRIPTORS) is None


def test_this_process():
    """Against /proc itself."""
    own = read_process(os.getpid()).id
    watch = ResourceWatch(own, 0, 45.0)
    with socket.socket():
        watch.read(Clock(), Background("test", 1))
    assert watch.count(ResourceKind.DESCRIPTORS) == pytest.approx(len(os.listdir("/proc/self/fd")), abs=3)
    assert watch.count(ResourceKind.THREADS) >= 1
