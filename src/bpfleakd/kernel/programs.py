"""The programs of bpf/bpfleakd.bpf.c, by purpose and by attach method.

The three ways to attach, best first:

    session   one program for entry and return, which may decline the return (Linux 6.13); functions that
              free have a separate one, because a session makes the calls of all other processes return
              through the kernel
    multi     many offsets under one link, entry and return apart (Linux 6.6)
    perf      a perf event for each offset (Linux 5.15 for links)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from bpfleakd import errors
from bpfleakd.kernel.bpf import AttachType, ProgramType


class AttachMethod(StrEnum):
    """How uprobes are attached."""

    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"


class WalkerKind(StrEnum):
    """How the stack walker's loop is bounded, as the verifier requires."""

    MAY_GOTO = "may_goto"
    """One program walks the whole stack (Linux 6.9)."""
    TAIL_CALLS = "tail_calls"
    """Each program walks a part and calls the next."""


class SyscallMethod(StrEnum):
    """How programs are attached to system calls."""

    FUNCTIONS = "functions"
    """At the kernel's functions of these calls (Linux 6.14): nothing else becomes slower."""
    TRACEPOINTS = "tracepoints"
    """At tracepoints: every system call of every process becomes slower."""


# The first release of Linux with each. uprobe multi came with 6.6, but filtered threads instead of processes.
# Since 5.15 perf events carry a cookie ("bpf: Allow to specify user-provided bpf_cookie for BPF perf links"):
# without it a program cannot tell which function it is in. kprobe multi came with 5.18, but missed returns if
# many calls were under way at once, until it used the function graph tracer (4346ba160409).
_SINCE: Mapping[str, tuple[int, int]] = {
    AttachMethod.SESSION: (6, 13),
    AttachMethod.MULTI: (6, 10),
    AttachMethod.PERF: (5, 15),
    WalkerKind.MAY_GOTO: (6, 9),
    WalkerKind.TAIL_CALLS: (5, 15),
    SyscallMethod.FUNCTIONS: (6, 14),
}


def check_release(release: str) -> None:
    """Raise KernelUnsupported for a kernel that is too old, before anything is loaded."""
    oldest = _SINCE[AttachMethod.PERF]
    if numbers_of(release) < oldest:
        raise errors.KernelUnsupported(
            f"{release} is too old: bpfleakd needs Linux {since(AttachMethod.PERF)} or newer",
            "boot a newer kernel; docs/limits.md lists what each one offers",
        )


def since(name: str) -> str:
    """The first release of Linux with an attach method or kind of walker, such as "6.13"."""
    return ".".join(map(str, _SINCE[name]))


def has_come(name: str, release: str) -> bool:
    """Whether a release of Linux should have an attach method, a kind of walker, or FUNCTIONS."""
    return numbers_of(release) >= _SINCE[name]


def unexpected_fallbacks(passed_over: Mapping[str, str], release: str) -> dict[str, str]:
    """Methods and walkers that were passed over, by reason, although this release should have them."""
    return {name: reason for name, reason in passed_over.items() if has_come(name, release)}


def numbers_of(release: str) -> tuple[int, ...]:
    """The first three numbers of a kernel's release, or fewer: (6, 18, 15)."""
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])


class Covered(StrEnum):
    """The probed functions that a program handles."""

    ALL = "all"
    RETURNING = "returning"
    """Those whose return is traced."""
    OTHERS = "others"
    SAMPLED = "sampled"
    """Not functions, but the probes of a sampler inside the process."""


class Program(Struct, frozen=True):
    """A program to load: its C function, its types, and the calls it handles, at entry or return."""

    function: str
    type: ProgramType
    attach_type: AttachType
    at_return: bool = False
    tracepoint: str | None = None
    covered: Covered = Covered.ALL


def _entry_and_exit(prefix: str, attach_type: AttachType) -> tuple[Program, Program]:
    kind, covered = ProgramType.KPROBE, Covered.RETURNING
    return (
        Program(f"{prefix}_entry", kind, attach_type),
        Program(f"{prefix}_exit", kind, attach_type, at_return=True, covered=covered),
    )


def _of_sampler(attach_type: AttachType) -> Program:
    # Never in a session: at these probes, the word at the stack pointer is not a return address.
    return Program("sampled_probe", ProgramType.KPROBE, attach_type, covered=Covered.SAMPLED)


_UPROBE_PROGRAMS = {
    AttachMethod.SESSION: (
        Program("heap_session", ProgramType.KPROBE, AttachType.UPROBE_SESSION, covered=Covered.RETURNING),
        Program("heap_release", ProgramType.KPROBE, AttachType.UPROBE_MULTI, covered=Covered.OTHERS),
        _of_sampler(AttachType.UPROBE_MULTI),
    ),
    AttachMethod.MULTI: (
        *_entry_and_exit("heap", AttachType.UPROBE_MULTI),
        _of_sampler(AttachType.UPROBE_MULTI),
    ),
    AttachMethod.PERF: (*_entry_and_exit("heap", AttachType.NONE), _of_sampler(AttachType.NONE)),
}

_SHARED_PROGRAMS = _entry_and_exit("shared", AttachType.NONE)

# The ends of threads and execs, the same for every method.
LIFE_PROGRAMS = (
    Program("process_exec", ProgramType.RAW_TRACEPOINT, AttachType.NONE, tracepoint="sched_process_exec"),
    Program("thread_exit", ProgramType.RAW_TRACEPOINT, AttachType.NONE, tracepoint="sched_process_exit"),
)


# System calls, at both ends.
_SYSCALL_PROGRAMS = {
    SyscallMethod.FUNCTIONS: (
        Program("syscall_enter", ProgramType.KPROBE, AttachType.KPROBE_MULTI),
        Program("syscall_exit", ProgramType.KPROBE, AttachType.KPROBE_MULTI, at_return=True),
    ),
    SyscallMethod.TRACEPOINTS: (
        Program("syscall_enter", ProgramType.TRACEPOINT, AttachType.NONE),
        Program("syscall_exit", ProgramType.TRACEPOINT, AttachType.NONE, at_return=True),
    ),
}


class SyscallSet(Struct, frozen=True):
    """System calls that programs are attached to together, at their entry or at their return.

    `may_miss`: the kernel may lack some of them.
    """

    name: str
    at_entry: tuple[str, ...]
    at_return: tuple[str, ...]
    may_miss: bool = False


def _calls(names: str) -> tuple[str, ...]:
    return tuple(names.split())


SPACE_CALLS = SyscallSet(
    "space", _calls("munmap mremap"), _calls("mmap munmap mremap brk mprotect madvise")
)
# If programs use the call often: detaching a tracepoint takes 80 ms.
DESCRIPTOR_CALLS = SyscallSet(
    "descriptors",
    _calls("close"),
    _calls(
        "open openat openat2 creat memfd_create socket socketpair accept accept4 pipe pipe2 dup dup2 dup3"
        " fcntl epoll_create epoll_create1 eventfd eventfd2 signalfd4 timerfd_create inotify_init"
        " inotify_init1 pidfd_open userfaultfd perf_event_open io_uring_setup"
    ),
    may_miss=True,
)


def continuations_of(method: AttachMethod) -> dict[str, Program]:
    """The programs that go on after a walk, or a part of it, by the map that they are the only entry of."""
    (returning,) = (program for program in programs_of(method) if program.covered is Covered.RETURNING)
    return {
        "continuations": Program("heap_continue", returning.type, returning.attach_type),
        "syscall_continuations": Program("syscall_continue", ProgramType.TRACEPOINT, AttachType.NONE),
        "code_programs": Program("syscall_code", ProgramType.TRACEPOINT, AttachType.NONE),
    }


def function_of(call: str) -> str:
    """The kernel's function of a system call of 64-bit programs on x86-64."""
    return f"__x64_sys_{call}"


def syscall_programs(method: SyscallMethod) -> tuple[Program, Program]:
    """The programs for system calls: at their entry, and at their return."""
    return _SYSCALL_PROGRAMS[method]


def probes_sites(walker: WalkerKind, syscalls: SyscallMethod) -> bool:
    """Whether system calls can be seen at instructions of a process (probes/syscall_sites.py), and need be.

    Walks that need several programs cannot go on from there.
    """
    return syscalls is SyscallMethod.TRACEPOINTS and walker is WalkerKind.MAY_GOTO


def programs_of(method: AttachMethod) -> tuple[Program, ...]:
    """The uprobe programs of a method."""
    return _UPROBE_PROGRAMS[method]


def lasting_programs(
    method: AttachMethod, walker: WalkerKind, syscalls: SyscallMethod
) -> tuple[Program, ...]:
    """All programs that a daemon links, each once, so they are pinned."""
    shared = shared_programs_of(method, walker)
    of_syscalls = syscall_programs(syscalls)
    return tuple(dict.fromkeys((*programs_of(method), *shared, *LIFE_PROGRAMS, *of_syscalls)))


def shared_programs_of(method: AttachMethod, walker: WalkerKind) -> tuple[Program, ...]:
    """The programs for shared perf events (probes/shared.py): entry and return.

    With AttachMethod.PERF, also that of a sampler's probes. Empty if none are shared.

    Perf events take programs without an attach type, as the method of this name uses anyway. Programs that
    continue by tail calls have the method's attach type, because the kernel requires the same type for all.
    """
    if method is AttachMethod.PERF:
        return programs_of(method)
    return _SHARED_PROGRAMS if walker is WalkerKind.MAY_GOTO else ()
