"""A process in /proc: its identity, and a pidfd, so its pid cannot come to mean another."""

from __future__ import annotations

import errno
import os
import select
import time
from pathlib import Path

from msgspec import Struct

from bpfleakd import errors, pid_namespace
from bpfleakd.model.process import ProcessId
from bpfleakd.printable import printable
from bpfleakd.process.proc_text import status_fields

PROC = Path("/proc")

# Stands for a pidfd: the process has ended, or runs another program.
GONE = -1

# include/linux/sched.h
_PF_KTHREAD = 0x0020_0000
_SECCOMP_MODE_DISABLED = 0


class ProcessInfo(Struct, frozen=True):
    """The state of a process at one moment.

    `exe` is "" if it cannot be read; `uid` is the effective one; `namespace_pid` is the process' own pid
    inside its container.
    """

    id: ProcessId
    namespace_pid: int
    comm: str
    exe: str
    uid: int
    state: str
    threads: int
    kernel_thread: bool
    seccomp_filtered: bool


def instance_of(pid: int, proc: Path = PROC) -> str:
    """A text that identifies the process that has this pid now. Raises NoSuchProcess."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise no_such_process(pid) from error
    return ProcessId(pid, int(stat[stat.rindex(b")") + 2 :].split()[19])).instance


def read_process(pid: int, proc: Path = PROC) -> ProcessInfo:
    """Read a process. Raises NoSuchProcess, also for the tid of a thread that is not a group leader."""
    directory = proc / str(pid)
    try:
        stat = (directory / "stat").read_bytes()
        values = status_fields(directory)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise no_such_process(pid) from error
    # comm may contain spaces and parentheses: the fields begin after the last ")".
    fields = stat[stat.rindex(b")") + 2 :].split()
    if int(values["Tgid"]) != pid:
        raise errors.NoSuchProcess(
            f"{pid} is a thread of process {values['Tgid']}", f"use the process: {values['Tgid']}"
        )
    return ProcessInfo(
        id=ProcessId(pid, int(fields[19])),
        namespace_pid=int(values.get("NSpid", str(pid)).split()[-1]),
        comm=command_of(pid, proc),
        exe=_exe(directory),
        uid=int(values["Uid"].split()[1]),
        state=fields[0].decode(),
        threads=int(values.get("Threads", "1")),
        kernel_thread=bool(int(fields[6]) & _PF_KTHREAD),
        seccomp_filtered=int(values.get("Seccomp", "0")) != _SECCOMP_MODE_DISABLED,
    )


class HeldProcess(Struct, frozen=True):
    """A process as it was when a pidfd was opened of it."""

    info: ProcessInfo
    pidfd: int

    def has_ended(self) -> bool:
        """Whether it is gone, with its last thread."""
        return has_ended(self.pidfd)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self.pidfd)


def hold(pid: int) -> HeldProcess:
    """Open a pidfd of a process, and read it. Raises NoSuchProcess, also for a thread, or KernelError."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise no_such_process(pid) from error
    except OSError as error:
        # `pid` is a tid: read_process reports its process. ENOENT since Linux 6.16.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            read_process(pid)
        raise errors.KernelError(f"cannot open a pidfd for process {pid}: {error.strerror}") from error
    try:
        return HeldProcess(read_process(pid), pidfd)
    except BaseException:
        os.close(pidfd)
        raise


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd is gone, with its last thread: it is readable then."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def hold_again(process: ProcessInfo) -> int:
    """A pidfd of a process if it is still the same one, or GONE."""
    try:
        pidfd = os.pidfd_open(process.id.pid)
    except OSError:
        return GONE
    try:
        if read_process(process.id.pid).id == process.id:
            return pidfd
    except errors.BpfleakdError:
        pass
    os.close(pidfd)
    return GONE


def is_hosts_init(pid: int) -> bool:
    """Whether this is the init process of the machine, not of the daemon's container."""
    return pid == 1 and pid_namespace.is_initial()


def command_of(pid: int, proc: Path = PROC) -> str:
    """The command name of a process; "" if it is gone."""
    try:
        return _name((proc / str(pid) / "comm").read_bytes())
    except OSError:
        return ""


def thread_commands(pid: int, proc: Path = PROC) -> dict[int, str]:
    """The current threads of a process, as tid -> command name; empty if it is gone."""
    names: dict[int, str] = {}
    try:
        tids = os.listdir(proc / str(pid) / "task")
    except OSError:
        return names
    for tid in tids:
        try:
            names[int(tid)] = _name((proc / str(pid) / "task" / tid / "comm").read_bytes())
        except OSError:
            continue
    return names


def _exe(directory: Path) -> str:
    try:
        return printable(os.readlink(directory / "exe"))
    except OSError:
        return ""


def _name(raw: bytes) -> str:
    return printable(raw.removesuffix(b"\n").decode(errors="surrogateescape"))


def process_cpu_ns(pid: int) -> int:
    """The processor time of a process so far. Raises OSError."""
    # What clock_getcpuclockid(3) returns: MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED).
    return time.clock_gettime_ns((~pid << 3) | 2)


def no_such_process(pid: int) -> errors.NoSuchProcess:
    """Return the error for a process that is not there."""
    return errors.NoSuchProcess(f"there is no process {pid}", "`ps -e` lists those that exist")
