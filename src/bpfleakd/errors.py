"""Errors: the tree of everything a user can meet.

    BpfleakdError
    ├── ConfigError             the configuration file is wrong
    ├── DaemonUnreachable       no daemon answers on the socket
    ├── AlreadyRunning          another daemon has what this one wants
    ├── NoSuchReport            what is asked for is not remembered
    ├── AccessDenied            this user may not do that
    ├── OutputFailed            the file that a command was to write
    ├── BadHistory              the file that `analyze` was to read
    ├── TargetError             this process cannot be traced
    │   ├── NoSuchProcess       ... it does not exist, or has ended
    │   ├── TargetRefused       ... by its nature: kernel thread, zombie, ourselves, unsafe to probe
    │   ├── NoAllocator         ... nothing in it that we know how to probe
    │   ├── BadElf              ... a file it maps cannot be understood
    │   ├── NotYet              ... so far: its files or memory are still being read
    │   ├── AlreadyAttached
    │   ├── NotAttached
    │   └── NoSuchSite          ... is, but not this call site of it
    └── KernelError             the kernel refused something
        ├── KernelUnsupported   ... because it lacks the feature
        └── CapacityError       ... because there is no room for this process in a table of ours
            └── TablesFull      ... nor for any other

An error states the fact with its value, and `hint` states how to fix it. `exit_code` is what a
command ends with; `code` is the stable name that the API sends.
"""

from __future__ import annotations


class BpfleakdError(Exception):
    """The root. `message` is one sentence with the fact, `hint` what to do about it (or empty)."""

    exit_code = 1
    code = "error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(BpfleakdError):
    """The configuration file cannot be used; the message starts with `path:line:`."""

    exit_code = 2
    code = "config"


class DaemonUnreachable(BpfleakdError):
    """Nothing answers on the daemon's socket."""

    exit_code = 3
    code = "daemon-unreachable"


class AlreadyRunning(BpfleakdError):
    """Another daemon uses the socket or the directory of pins."""

    exit_code = 11
    code = "already-running"


class NoSuchReport(BpfleakdError):
    """No report with this number is kept, or not any more."""

    exit_code = 5
    code = "no-such-report"


class AccessDenied(BpfleakdError):
    """The caller lacks a privilege: root, a capability, or access to the socket."""

    exit_code = 4
    code = "access-denied"


class OutputFailed(BpfleakdError):
    """What a command was to write cannot be written there."""

    code = "output"


class BadHistory(BpfleakdError):
    """The file is not a history that can be analysed."""

    code = "bad-history"


class TargetError(BpfleakdError):
    """The requested process cannot be traced."""

    exit_code = 5
    code = "target"


class NoSuchProcess(TargetError):
    """The process does not exist, or ended meanwhile."""

    exit_code = 6
    code = "no-such-process"


class TargetRefused(TargetError):
    """The process exists but must not be traced; the message says why."""

    exit_code = 7
    code = "target-refused"


class NoAllocator(TargetError):
    """No mapped file of the process holds an allocator that we know."""

    exit_code = 8
    code = "no-allocator"


class BadElf(TargetError):
    """A file that the process maps is not an ELF file that can be read."""

    exit_code = 8
    code = "bad-elf"


class NotYet(TargetError):
    """The files of the process are still being read, or its memory does not answer."""

    code = "not-yet"


class AlreadyAttached(TargetError):
    """The process is being traced already."""

    code = "already-attached"


class NotAttached(TargetError):
    """The process is not being traced."""

    code = "not-attached"


class NoSuchTime(TargetError):
    """There are no figures of the process at that time."""

    code = "no-such-time"


class NoSuchSite(TargetError):
    """The process has no call site with this fingerprint."""

    code = "no-such-site"


class KernelError(BpfleakdError):
    """A system call of ours failed in a way that is not the target's doing."""

    exit_code = 9
    code = "kernel"


class KernelUnsupported(KernelError):
    """The running kernel lacks a requested feature."""

    exit_code = 10
    code = "kernel-unsupported"


class CapacityError(KernelError):
    """There is no room for a process in a table of ours; there may be for others, which need less or none."""

    code = "capacity"


class TablesFull(CapacityError):
    """A table that every process needs is full: a configured limit was reached."""

    code = "tables-full"


def by_code(code: str) -> type[BpfleakdError]:
    """Return the class whose `code` this is; `BpfleakdError` for an unknown one."""
    pending: list[type[BpfleakdError]] = [BpfleakdError]
    while pending:
        error = pending.pop()
        if error.code == code:
            return error
        pending.extend(error.__subclasses__())
    return BpfleakdError
