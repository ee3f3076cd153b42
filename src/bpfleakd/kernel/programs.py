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
from bpfleakd.model import FunctionRole

__all__ = ["LIFE_PROGRAMS", "AttachMethod", "Program", "programs_of"]


class AttachMethod(StrEnum):
    """How uprobes are attached."""

    SESSION = "session"
    MULTI = "multi"
    PERF = "perf"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to load: its C function, types, and for uprobes the role that it serves.

    `role` None with a uprobe attach type is the return of every allocating function.
    """

    function: str
    type: ProgramType
    attach_type: AttachType
    role: FunctionRole | None = None
    tracepoint: str | None = None


_ENTRY_FUNCTIONS = {
    FunctionRole.SIZE_FIRST: "size_first",
    FunctionRole.SIZE_SECOND: "size_second",
    FunctionRole.CALLOC: "calloc",
    FunctionRole.REALLOC: "realloc",
    FunctionRole.POSIX_MEMALIGN: "posix_memalign",
}

# Process life, the same for every method.
LIFE_PROGRAMS = (
    Program("process_exec", ProgramType.RAW_TRACEPOINT, AttachType.NONE, tracepoint="sched_process_exec"),
    Program("thread_exit", ProgramType.RAW_TRACEPOINT, AttachType.NONE, tracepoint="sched_process_exit"),
)


def programs_of(method: AttachMethod) -> tuple[Program, ...]:
    """The uprobe programs that a method needs."""
    entry_type = AttachType.NONE if method is AttachMethod.PERF else AttachType.UPROBE_MULTI
    release = Program("release_entry", ProgramType.KPROBE, entry_type, FunctionRole.RELEASE)
    if method is AttachMethod.SESSION:
        sessions = (
            Program(f"{name}_session", ProgramType.KPROBE, AttachType.UPROBE_SESSION, role)
            for role, name in _ENTRY_FUNCTIONS.items()
        )
        return (release, *sessions)
    entries = (
        Program(f"{name}_entry", ProgramType.KPROBE, entry_type, role)
        for role, name in _ENTRY_FUNCTIONS.items()
    )
    return (release, *entries, Program("leave_exit", ProgramType.KPROBE, entry_type))
