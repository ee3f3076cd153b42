"""A process held by a pidfd, so its pid cannot come to mean another."""

from __future__ import annotations

import errno
import os
import select

from bpfleakd import errors
from bpfleakd.process.process import ProcessInfo, no_such_process, read_process

__all__ = ["GONE", "has_ended", "hold", "hold_again"]

# Stands for a pidfd: the process has ended, or runs another program.
GONE = -1


def hold(pid: int) -> int:
    """Open a pidfd of a process. Raises NoSuchProcess, KernelError, or TargetRefused if `pid` is a thread."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise no_such_process(pid) from error
    except OSError as error:
        # `pid` is a tid: read_process reports its process. ENOENT since Linux 6.16.
        if error.errno in (errno.EINVAL, errno.ENOENT):
            read_process(pid)
        raise errors.KernelError(f"cannot open a pidfd for process {pid}: {error.strerror}") from error


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended."""
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
