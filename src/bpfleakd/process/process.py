"""A process in /proc: its identity, whether it still exists, and whether it may be traced."""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

from bpfleakd import errors, pid_namespace
from bpfleakd.model.process import ProcessId
from bpfleakd.printable import printable

__all__ = [
    "ProcessInfo",
    "check_traceable",
    "command_of",
    "instance_of",
    "is_hosts_init",
    "no_such_process",
    "read_process",
    "seccomp_kills",
    "thread_commands",
]

PROC = Path("/proc")

# include/linux/sched.h
_PF_KTHREAD = 0x0020_0000
_SECCOMP_MODE_DISABLED = 0

# uretprobes kill a process under seccomp, strict or with a filter: CVE-2025-21834, from Linux 6.11 on, fixed
# in 6.12.14 and 6.13.3. First fixed release of each affected series; None: never fixed in that series.
_SECCOMP_KILLS: dict[tuple[int, int], int | None] = {(6, 11): None, (6, 12): 14, (6, 13): 3}


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
    return f"{pid}@{int(stat[stat.rindex(b')') + 2 :].split()[19])}"


def read_process(pid: int, proc: Path = PROC) -> ProcessInfo:
    """Read a process. Raises NoSuchProcess, also for the tid of a thread that is not a group leader."""
    directory = proc / str(pid)
    try:
        stat = (directory / "stat").read_bytes()
        status = (directory / "status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise no_such_process(pid) from error
    # comm may contain spaces and parentheses: the fields begin after the last ")".
    fields = stat[stat.rindex(b")") + 2 :].split()
    values = dict(re.findall(r"^(\w+):\t(.*)$", status, re.MULTILINE))
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


def is_hosts_init(pid: int) -> bool:
    """Whether this is the init process of the machine, not of the daemon's container."""
    return pid == 1 and pid_namespace.is_initial()


def check_traceable(
    process: ProcessInfo, own_pid: int, kernel_release: str, *, is_init: bool = False
) -> None:
    """Raise TargetRefused, with the reason, if the process must not be traced."""
    pid = process.id.pid
    if is_init:
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) is init", "a fault in init would panic the kernel"
        )
    if pid == own_pid:
        raise errors.TargetRefused(
            f"process {pid} is bpfleakd itself", "the daemon must not record its own malloc"
        )
    if process.kernel_thread:
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) is a kernel thread", "it has no user-space memory to leak"
        )
    if process.state in "ZX" and process.threads > 1:
        raise errors.TargetRefused(
            f"the main thread of process {pid} ({process.comm}) has ended before the others",
            "its mappings can only be read through its main thread: attach earlier",
        )
    if process.state in "ZX":
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) is a zombie",
            "its memory is already free; its parent has not reaped it yet",
        )
    if process.seccomp_filtered and seccomp_kills(kernel_release):
        raise errors.TargetRefused(
            f"process {pid} ({process.comm}) runs under seccomp, and return probes kill such a "
            f"process on Linux {kernel_release} (CVE-2025-21834)",
            "update the kernel to 6.12.14, 6.13.3 or later",
        )


def seccomp_kills(kernel_release: str) -> bool:
    """Whether return probes kill a process under seccomp on this kernel."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", kernel_release)
    if not match:
        return False
    major, minor, patch = (int(number or 0) for number in match.groups())
    if (major, minor) not in _SECCOMP_KILLS:
        return False
    fixed_in = _SECCOMP_KILLS[major, minor]
    return fixed_in is None or patch < fixed_in


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


def no_such_process(pid: int) -> errors.NoSuchProcess:
    """Return the error for a process that is not there."""
    return errors.NoSuchProcess(f"there is no process {pid}", "`ps -e` lists those that exist")
