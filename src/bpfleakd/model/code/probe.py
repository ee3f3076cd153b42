"""Allocator functions under probes, and what a probe costs."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class FunctionRole(StrEnum):
    """What a probed function does with its arguments, and hence what the BPF program does."""

    SIZE_FIRST = "size-first"
    SIZE_SECOND = "size-second"
    CALLOC = "calloc"
    REALLOC = "realloc"
    POSIX_MEMALIGN = "posix-memalign"
    RELEASE = "release"
    LIBRARIES_CHANGED = "libraries-changed"
    REALLOC_ARRAY = "realloc-array"
    REALLOC_OR_FREE = "realloc-or-free"
    RESIZE = "resize"
    STRDUP = "strdup"
    SAMPLED_ALLOC = "sampled-alloc"
    """Not a function but the probe of a sampler inside the process, like the next one."""
    SAMPLED_FREE = "sampled-free"
    CODE_RELEASED = "code-released"
    SYSCALL_ENTRY = "syscall-entry"
    """Not a function but an instruction that makes a system call; the next one is behind it."""
    SYSCALL_RETURN = "syscall-return"


NOTICES = (FunctionRole.LIBRARIES_CHANGED, FunctionRole.CODE_RELEASED)
"""The roles of functions that have to do with no block: only that they were called matters."""


class ProbedFunction(Struct, frozen=True):
    """One allocator function under a probe.

    `offset` is the file offset of the breakpoint in `module`. The kernel emulates the instruction there
    if `emulated`; otherwise a hit costs about ten times as much.
    """

    allocator: str
    function: str
    role: FunctionRole
    module: str
    offset: int
    emulated: bool


class ProbeCost(Struct, frozen=True):
    """What a probe hit costs a process, and the extra cost of recording a block."""

    hit_ns: float
    record_ns: float
