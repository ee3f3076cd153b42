"""Which processes there are, and what changed since the last look."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bpfleakd.model.process import ProcessId
from bpfleakd.model.process_events import ProcessChange, ProcessEvent
from bpfleakd.process.policy.subject import ProcSubject
from bpfleakd.process.processes import ProcessStat, Scanner, list_processes, read_stat

from .proc_files import a_process

KERNEL_THREAD = 0x0020_0000


def fork(pid: int) -> ProcessEvent:
    return ProcessEvent(ProcessChange.FORK, pid, parent_pid=1)


def exit_of(pid: int) -> ProcessEvent:
    return ProcessEvent(ProcessChange.EXIT, pid)


def end(proc: Path, pid: int) -> None:
    shutil.rmtree(proc / str(pid))


def test_a_process(tmp_path):
    """Its name may hold anything."""
    a_process(tmp_path, 23, comm=b"a) (b\n", start_ticks=8_009)
    stat = ProcessStat(ProcessId(23, 8_009), 1, "a) (b\\x0a", kernel_thread=False)
    assert read_stat(23, tmp_path) == stat
    a_process(tmp_path, 29, flags=KERNEL_THREAD)
    assert read_stat(29, tmp_path).kernel_thread


def test_zombies_and_the_dead_are_no_processes(tmp_path):
    """There is nothing to be done with them."""
    a_process(tmp_path, 23, state="Z")
    assert read_stat(23, tmp_path) is None
    assert read_stat(29, tmp_path) is None


def test_this_process():
    """The real /proc, compared with Python."""
    stat = read_stat(os.getpid())
    assert (stat.id.pid, stat.parent_pid) == (os.getpid(), os.getppid())
    assert stat in list_processes()


def test_all_processes_come_by_age(tmp_path):
    """So a parent comes before its children; names that are not pids are skipped."""
    for pid, start_ticks in ((101, 3), (23, 7), (29, 5)):
        a_process(tmp_path, pid, start_ticks=start_ticks)
    (tmp_path / "self").symlink_to("23")
    assert [stat.id.pid for stat in list_processes(tmp_path)] == [101, 29, 23]


def test_a_scan_tells_what_changed(tmp_path):
    """New ones by age, and those that are gone."""
    scanner = Scanner(tmp_path)
    a_process(tmp_path, 29, start_ticks=3)
    a_process(tmp_path, 23, start_ticks=7)
    assert scanner.scan() == [fork(29), fork(23)]
    assert scanner.scan() == []
    end(tmp_path, 29)
    a_process(tmp_path, 31)
    assert scanner.scan() == [exit_of(29), fork(31)]


def test_a_process_that_executes_after_its_fork_is_seen_at_the_next_scan(tmp_path):
    """By its name; one that does so later, some scans after that."""
    scanner = Scanner(tmp_path)
    a_process(tmp_path, 23, comm=b"sh", start_ticks=7)
    scanner.scan()
    end(tmp_path, 23)
    a_process(tmp_path, 23, comm=b"shop", start_ticks=7)
    assert scanner.scan() == [ProcessEvent(ProcessChange.EXEC, 23)]
    assert scanner.scan() == []
    end(tmp_path, 23)
    a_process(tmp_path, 23, comm=b"late", start_ticks=7)
    later = [event for _ in range(16) for event in scanner.scan()]
    assert later == [ProcessEvent(ProcessChange.EXEC, 23)]


def test_processes_are_listed_when_a_pid_was_given_out(tmp_path):
    """New processes are reported at once; otherwise they are listed now and then, to find those that ended.
    """
    scanner = Scanner(tmp_path)
    a_process(tmp_path, 23)
    loadavg = tmp_path / "loadavg"
    loadavg.write_text("0.00 0.01 0.05 1/80 23\n")
    assert scanner.scan() == [fork(23)]

    a_process(tmp_path, 29)  # and no word of it
    assert scanner.scan() == []
    loadavg.write_text("0.00 0.01 0.05 1/81 29\n")
    assert scanner.scan() == [fork(29)]

    a_process(tmp_path, 31)
    later = [scanner.scan() for _ in range(5)]
    assert later == [[], [], [], [], [fork(31)]]


def test_old_processes_are_looked_at_in_turn(tmp_path):
    """A scan of many reads a few of them."""
    scanner = Scanner(tmp_path)
    for pid in range(100, 200):
        a_process(tmp_path, pid, comm=b"sh")
    for _ in range(2):
        scanner.scan()
    for pid in range(100, 200):
        end(tmp_path, pid)
        a_process(tmp_path, pid, comm=b"shop")
    seen = [{event.pid for event in scanner.scan()} for _ in range(8)]
    assert max(map(len, seen)) == 16
    assert set().union(*seen) == set(range(100, 200))


def test_a_pid_that_is_used_again_is_told_of(tmp_path):
    """Within some scans: as the end of one and the start of another."""
    scanner = Scanner(tmp_path)
    a_process(tmp_path, 23, start_ticks=7)
    scanner.scan()
    end(tmp_path, 23)
    a_process(tmp_path, 23, start_ticks=101)
    later = [event for _ in range(16) for event in scanner.scan()]
    assert later == [exit_of(23), fork(23)]


def test_a_process_that_becomes_a_zombie_ends(tmp_path):
    """Though its directory stays until its parent has waited for it."""
    scanner = Scanner(tmp_path)
    a_process(tmp_path, 23, start_ticks=7)
    scanner.scan()
    end(tmp_path, 23)
    a_process(tmp_path, 23, state="Z", start_ticks=7)
    assert scanner.scan() == [exit_of(23)]


def test_what_rules_ask_for(tmp_path):
    """Texts are printable, and None where there is nothing."""
    a_process(tmp_path, 23, exe="/usr/bin/shop (deleted)")
    (tmp_path / "23/cmdline").write_bytes(b"shop\0--worker\0a\nb\0")
    (tmp_path / "23/cgroup").write_text("0::/system.slice/shop.service\n")
    subject = ProcSubject(read_stat(23, tmp_path), tmp_path)
    assert (subject.pid, subject.comm, subject.exe) == (23, "shop", "/usr/bin/shop")
    assert subject.cmdline == "shop --worker a\\x0ab"
    assert (subject.uid, subject.unit) == (1001, "shop.service")
    assert (subject.cgroup, subject.container) == ("/system.slice/shop.service", None)


def test_what_rules_ask_for_of_a_process_that_is_gone(tmp_path):
    """It has no properties any more, which is not an error."""
    a_process(tmp_path, 23)
    subject = ProcSubject(read_stat(23, tmp_path), tmp_path)
    end(tmp_path, 23)
    nothing = (subject.exe, subject.cmdline, subject.uid, subject.user, subject.unit, subject.container)
    assert nothing == (None,) * 6
