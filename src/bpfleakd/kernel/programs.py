"""The programs of bpf/bpfleakd.bpf.c, by what they do and by how the kernel runs them.

The three ways to attach, best first:

    session   one program for entry and return, which may decline the return (Linux 6.13)
    multi     many offsets under one link, entry and return apart (Linux 6.6)
    perf      a perf event for each offset (Linux 5.15 for links)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bpfleakd.kernel.bpf import AttachType, ProgramType

__all__ = [
    "LIFE_PROGRAMS",
    "SPACE_PROGRAMS",
    "AttachMethod",
    "Program",
    "WalkerKind",
    "continuations_of",
    "programs_of",
]


class AttachMethod(StrEnum):
    """How uprobes are attached."""

    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"


class WalkerKind(StrEnum):
    """How the stack walker is bounded, which the verifier insists on."""

    MAY_GOTO = "may_goto"
    """One program walks the whole stack (Linux 6.9)."""
    TAIL_CALLS = "tail_calls"
    """Each program walks a part and calls the next."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to load: its C function, its types, and which end of a call it runs at."""

    function: str
    type: ProgramType
    attach_type: AttachType
    at_return: bool = False
    tracepoint: str | None = None


_UPROBE_PROGRAMS = {
    AttachMethod.SESSION: (Program("heap_session", ProgramType.KPROBE, AttachType.UPROBE_SESSION),),
    AttachMethod.MULTI: (
        Program("heap_entry", ProgramType.KPROBE, AttachType.UPROBE_MULTI),
        Program("heap_exit", ProgramType.KPROBE, AttachType.UPROBE_MULTI, at_return=True),
    ),
    AttachMethod.PERF: (
        Program("heap_entry", ProgramType.KPROBE, AttachType.NONE),
        Program("heap_exit", ProgramType.KPROBE, AttachType.NONE, at_return=True),
    ),
}

# Process life, the same for every method.
LIFE_PROGRAMS = (
    Program("process_exec", ProgramType.RAW_TRACEPOINT, AttachType.NONE, tracepoint="sched_process_exec"),
    Program("thread_exit", ProgramType.RAW_TRACEPOINT, AttachType.NONE, tracepoint="sched_process_exit"),
)


# The address space: each program and the tracepoints that it is linked to.
SPACE_PROGRAMS = {
    Program("space_enter", ProgramType.TRACEPOINT, AttachType.NONE): tuple(
        f"syscalls/sys_enter_{call}" for call in ("munmap", "mremap")
    ),
    Program("space_exit", ProgramType.TRACEPOINT, AttachType.NONE): tuple(
        f"syscalls/sys_exit_{call}" for call in ("mmap", "munmap", "mremap", "brk", "mprotect", "madvise")
    ),
}


def continuations_of(method: AttachMethod) -> dict[str, Program]:
    """The programs that go on with a walk, by the map that they are the only entry of."""
    returning = programs_of(method)[-1]
    return {
        "continuations": Program("heap_continue", returning.type, returning.attach_type),
        "space_continuations": Program("space_continue", ProgramType.TRACEPOINT, AttachType.NONE),
    }


def programs_of(method: AttachMethod) -> tuple[Program, ...]:
    """The uprobe programs that a method needs."""
    return _UPROBE_PROGRAMS[method]
