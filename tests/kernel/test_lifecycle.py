"""Processes fork, execute, exit and never existed; daemons end: nothing remains, and no process is harmed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .daemons import ControlFailed, DaemonFailed
from .kernel_objects import changed_text, objects_held_by
from .machine import cannot_run, need_tool
from .truth import by_function, expect_ledger, expect_no_losses
from .waiting import wait_until
from .workloads import Workload, build

NO_SUCH_PROCESS, REFUSED, NO_ALLOCATOR = 6, 7, 8


def _is_traced(tracer, pid: int) -> bool:
    row = tracer.process(pid)
    return row is not None and row["process"]["state"] == "traced"


def _of_processes(tracer) -> dict[str, set[int]]:
    """The kernel's objects that the daemon holds, without the unwind tables of files, which it keeps."""
    return {
        kind: {id_ for id_, name in ids.items() if not name.startswith("bpfleakd_shard")}
        for kind, ids in objects_held_by(tracer.pid).ids.items()
    }


# -- the life of a target ----------------------------------------------------------------------------------


def test_exit_of_the_target_ends_its_table(daemon, workload):
    """An ended process is not traced any more, and its objects are gone while the daemon lives on."""
    program = workload("many_sites", 23)
    tracer = daemon()
    idle = _of_processes(tracer)
    tracer.attach(program.pid)
    program.step()
    assert _of_processes(tracer) != idle

    program.exit()

    wait_until(lambda: not _is_traced(tracer, program.pid))
    wait_until(lambda: _of_processes(tracer) == idle)
    assert tracer.is_alive


def test_a_killed_target_ends_its_table_too(daemon, workload):
    """SIGKILL during an allocation leaves no table behind."""
    program = workload("churn", 2)
    tracer = daemon()
    tracer.attach(program.pid)
    program.start_step(10_000_000)
    time.sleep(0.3)

    os.kill(program.pid, signal.SIGKILL)
    program.kill()

    wait_until(lambda: not _is_traced(tracer, program.pid))


@pytest.mark.long
def test_exec_of_the_target_ends_its_table(daemon, workload):
    """After exec the pid is another program: the addresses in the old table mean nothing."""
    program = workload("exec_fork", "exec")
    tracer = daemon()
    tracer.attach(program.pid)

    # when the program becomes another one, which allocates
    program.start_step()
    program.wait_ready()
    program.step()

    # then the old figures are not shown as the new program's
    wait_until(lambda: not _is_traced(tracer, program.pid))
    try:
        functions = by_function(tracer.top(program.pid))
    except ControlFailed:
        functions = {}
    assert "allocate_after" not in functions
    assert changed_text(program.pid) == []


def test_a_program_can_be_attached_again_after_its_exec(daemon, workload):
    """The new program behind the old pid starts with an empty table."""
    program = workload("exec_fork", "exec")
    tracer = daemon()
    tracer.attach(program.pid)
    program.start_step()
    program.wait_ready()
    wait_until(lambda: not _is_traced(tracer, program.pid))

    tracer.attach(program.pid)
    ledger = program.step()

    expect_ledger(tracer.top_after_tick(program.pid), ledger)


def test_a_forked_child_changes_nothing_in_its_parents_table(daemon, workload):
    """The child frees copies of the parent's blocks and allocates its own: the parent keeps 23 a step."""
    program = workload("exec_fork", "fork")
    tracer = daemon()
    tracer.attach(program.pid)

    for _round in range(3):
        ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    assert report["process"]["live_count"] == 3 * 23
    expect_ledger(report, ledger)
    expect_no_losses(report)
    assert report["process"]["unmatched_frees"] == 0


def test_a_vforked_command_changes_nothing_in_its_parents_table(daemon, workload):
    """A child that shares the parent's memory until its exec is not the parent."""
    program = workload("exec_fork", "vfork")
    tracer = daemon()
    tracer.attach(program.pid)

    for _round in range(3):
        ledger = program.step()

    expect_ledger(tracer.top_after_tick(program.pid), ledger)


def test_blocks_of_an_ended_thread_stay_live(daemon, workload):
    """A leak outlives the thread that made it."""
    program = workload("exec_fork", "thread")
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step()

    functions = by_function(tracer.top_after_tick(program.pid))
    for name in ("allocate_before", "allocate_after"):
        assert functions[name]["live_bytes"] == ledger["sites"][name]["live_bytes"]


@pytest.mark.parametrize("policy", ["allow", "strict"])
def test_a_program_under_seccomp_is_traced_and_survives(daemon, workload, policy):
    """Tracing adds no system call that a seccomp filter would kill the program for."""
    program = workload("seccomp", policy)
    tracer = daemon()
    tracer.attach(program.pid)

    ledger = program.step()

    report = tracer.top_after_tick(program.pid)
    expect_ledger(report, ledger)
    program.exit()


def test_two_processes_of_one_program_have_their_own_tables(daemon, workload):
    """The same addresses and the same stacks in two processes never meet."""
    first, second = workload("every_function", 1), workload("every_function", 2)
    tracer = daemon()
    tracer.attach(first.pid)
    tracer.attach(second.pid)

    first_ledger, second_ledger = first.step(), second.step()

    expect_ledger(tracer.top_after_tick(first.pid), first_ledger)
    expect_ledger(tracer.top(second.pid), second_ledger)


# -- detach and the end of the daemon ------------------------------------------------------------------------


def test_detach_leaves_nothing_of_the_process(daemon, workload):
    """After detach the process is unknown, its code is unchanged, and its tables are freed."""
    program = workload("every_function", 2)
    tracer = daemon()
    idle = _of_processes(tracer)
    tracer.attach(program.pid)
    program.step()

    tracer.detach(program.pid)

    assert not _is_traced(tracer, program.pid)
    assert changed_text(program.pid) == []
    wait_until(lambda: _of_processes(tracer) == idle)
    program.step()
    program.exit()


@pytest.mark.long
def test_attaching_over_and_over_adds_nothing_in_the_kernel(daemon, workload):
    """Whatever is kept for the next attach (unwind tables) is kept once."""
    program = workload("many_sites", 23)
    tracer = daemon()
    idle = _of_processes(tracer)["link"]
    held = []

    for rounds in (1, 3):
        for _round in range(rounds):
            tracer.attach(program.pid)
            program.step()
            tracer.detach(program.pid)
        wait_until(lambda: _of_processes(tracer)["link"] == idle)
        held.append(objects_held_by(tracer.pid).ids)

    assert held[-1] == held[0]


def test_a_process_can_be_attached_again_after_detach(daemon, workload):
    """The second trace starts from zero: earlier allocations are unknown to it."""
    program = workload("many_sites", 23)
    tracer = daemon()
    tracer.attach(program.pid)
    first = program.step()
    tracer.detach(program.pid)

    tracer.attach(program.pid)
    second = program.step()

    report = tracer.top_after_tick(program.pid)
    assert report["process"]["live_count"] == second["live_count"] - first["live_count"]


def test_sigterm_leaves_nothing_in_the_kernel(daemon, workload):
    """SIGTERM removes its links, programs, maps and pins."""
    program = workload("every_function", 2)
    tracer = daemon()
    tracer.attach(program.pid)
    program.step()

    tracer.stop()  # checks exit code, pins and objects

    assert changed_text(program.pid) == []
    program.step()
    program.exit()


def test_sigint_ends_the_daemon_as_cleanly(daemon, workload):
    """Ctrl-C in the foreground is an orderly end."""
    program = workload("churn")
    tracer = daemon()
    tracer.attach(program.pid)
    tracer.note_objects()

    os.kill(tracer.pid, signal.SIGINT)

    wait_until(lambda: not tracer.is_alive)
    assert tracer._process.returncode == 0
    tracer.check_nothing_left()
    assert changed_text(program.pid) == []


def test_pid_on_the_daemons_command_line_is_attached_at_once(daemon, workload):
    """`bpfleakd --pid N` needs no bpfleakctl."""
    program = workload("many_sites", 23)
    tracer = daemon("--pid", str(program.pid))

    wait_until(lambda: _is_traced(tracer, program.pid))
    ledger = program.step()

    expect_ledger(tracer.top_after_tick(program.pid), ledger)


def test_a_daemon_starts_where_a_killed_one_left_its_pins(daemon, workload):
    """After SIGKILL of a daemon the next one with the same configuration works, and ends cleanly."""
    program = workload("many_sites", 23)
    first = daemon()
    first.attach(program.pid)
    first.kill()

    second = daemon(bpffs_dir=str(first.bpffs_dir), socket=str(first.socket))
    if not _is_traced(second, program.pid):
        second.attach(program.pid)
    before = second.top_after_tick(program.pid)["process"]["live_count"]
    program.step()
    after = second.top_after_tick(program.pid)["process"]["live_count"]

    assert after - before == 23 * 23
    second.stop()
    first.check_nothing_left()
    assert changed_text(program.pid) == []


# -- what cannot be traced -----------------------------------------------------------------------------------


def _refusal(tracer, pid: int) -> ControlFailed:
    with pytest.raises(ControlFailed) as failure:
        tracer.attach(pid)
    assert "Traceback" not in failure.value.stderr
    assert str(pid) in failure.value.stderr
    assert tracer.is_alive
    assert not _is_traced(tracer, pid)
    return failure.value


def test_a_pid_that_does_not_exist_is_refused(daemon):
    """The message names the pid, and the exit code the reason."""
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert _refusal(daemon(), ended.pid).exit_code == NO_SUCH_PROCESS


def _is_kernel_thread(stat: Path) -> bool:
    flags = int(stat.read_text().rpartition(")")[2].split()[6])
    return bool(flags & 0x00200000)  # PF_KTHREAD, include/linux/sched.h


def test_a_kernel_thread_is_refused(daemon):
    """A kernel thread has no heap."""
    kernel_threads = [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _is_kernel_thread(path)
    ]
    if not kernel_threads:
        cannot_run("there are no kernel threads to be seen: not in a container with its own pid namespace")

    assert _refusal(daemon(), kernel_threads[0]).exit_code == REFUSED


def test_a_zombie_is_refused(daemon):
    """A process that ended and was not waited for has no memory any more."""
    zombie = subprocess.Popen(["true"])
    wait_until(lambda: Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")

    assert _refusal(daemon(), zombie.pid).exit_code in (NO_SUCH_PROCESS, REFUSED)
    zombie.wait()


def test_the_daemon_itself_is_refused(daemon):
    """Tracing oneself would record the recording."""
    tracer = daemon()

    assert _refusal(tracer, tracer.pid).exit_code == REFUSED


def test_a_program_without_an_allocator_is_refused(daemon, workload):
    """A static program without libc has nothing that could be probed."""
    program = workload("no_allocator")

    assert _refusal(daemon(), program.pid).exit_code == NO_ALLOCATOR


def test_attaching_twice_is_an_error(daemon, workload):
    """The second attach is refused, and the first continues."""
    program = workload("many_sites", 23)
    tracer = daemon()
    tracer.attach(program.pid)

    with pytest.raises(ControlFailed):
        tracer.attach(program.pid)

    ledger = program.step()
    expect_ledger(tracer.top_after_tick(program.pid), ledger)


def test_detaching_an_untraced_process_is_an_error(daemon, workload):
    """No traceback, and the daemon continues."""
    program = workload("churn")
    tracer = daemon()

    with pytest.raises(ControlFailed) as failure:
        tracer.detach(program.pid)

    assert str(program.pid) in failure.value.stderr
    assert "Traceback" not in failure.value.stderr


def test_a_broken_elf_file_called_libc_does_not_stop_the_attach(daemon, tmp_path):
    """A mapping of junk under an allocator's name is passed over; the real libc is found."""
    junk = tmp_path / "libc.so.6"
    junk.write_bytes(b"\x7fELF" + b"\xff" * 8188)
    program = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import mmap, sys; f = open({str(junk)!r}, 'rb')\n"
            "m = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)\n"
            "print('ready', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert program.stdout.readline() == b"ready\n"
        tracer = daemon()

        tracer.attach(program.pid)

        assert _is_traced(tracer, program.pid)
        tracer.detach(program.pid)
    finally:
        program.communicate()


def test_processes_that_exit_during_attach_leave_nothing(daemon):
    """A target that is gone before the links are made is a message, not a broken daemon."""
    tracer = daemon()

    for delay_s in (0, 0.02, 0.05, 0.1, 0.2, 0.3):
        target = subprocess.Popen(["sleep", str(delay_s)])
        with contextlib.suppress(ControlFailed):
            tracer.attach(target.pid)
        target.wait()
        wait_until(lambda pid=target.pid: not _is_traced(tracer, pid))

    assert tracer.is_alive  # and the fixture checks what remains, and for tracebacks


def test_a_deleted_program_can_be_traced(daemon, tmp_path):
    """A program whose file was replaced by an upgrade is read through /proc."""
    copy = tmp_path / "many_sites"
    copy.write_bytes(build("many_sites").read_bytes())
    copy.chmod(0o755)
    program = Workload([copy, "23"])
    try:
        copy.unlink()
        tracer = daemon()
        tracer.attach(program.pid)

        ledger = program.step()

        expect_ledger(tracer.top_after_tick(program.pid), ledger)
    finally:
        program.kill()


# -- the daemon's own start ----------------------------------------------------------------------------------


def test_without_root_the_daemon_states_what_it_needs(tmp_path):
    """Exit code 4 and a sentence, instead of EPERM from the depths."""
    done = subprocess.run(
        [
            need_tool("setpriv"),
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            # The checkout may be where others must not read.
            "--inh-caps=+dac_read_search",
            "--ambient-caps=+dac_read_search",
            sys.executable,
            "-m",
            "bpfleakd.cli.bpfleakd",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd="/",
        env={**os.environ, "BPFLEAKD_SOCKET": str(tmp_path / "socket")},
    )

    assert done.returncode == 4, done.stderr
    assert "root" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_pins_outside_of_bpffs_are_refused(daemon, tmp_path):
    """A bpffs_dir on another file system ends the daemon with a message that says how to mount one."""
    with pytest.raises(DaemonFailed) as failure:
        daemon(bpffs_dir=str(tmp_path / "pins"))

    assert failure.value.exit_code not in (0, None)
    assert "bpf" in failure.value.log
    assert "Traceback" not in failure.value.log


@pytest.mark.long
def test_the_second_start_needs_no_compiler(daemon, workload, tmp_path):
    """The programs are kept, and record as those that have just been compiled."""
    program = workload("many_sites", 7)
    for was_compiled in (True, False):
        tracer = daemon(cache_dir=str(tmp_path / "cache"), log={"format": "json"})
        (loaded,) = [
            line for line in map(json.loads, tracer.log.splitlines()) if line["event"] == "kernel.loaded"
        ]
        assert loaded["was_compiled"] is was_compiled
        tracer.attach(program.pid)
        program.step(7)
        assert tracer.top_after_tick(program.pid)["process"]["allocated_count"] > 0
        tracer.stop()
