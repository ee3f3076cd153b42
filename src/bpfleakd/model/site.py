"""Call sites and their counters."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class AllocationKind(StrEnum):
    """The origin of outstanding memory.

    HEAP is from an allocator, GO_HEAP from Go's, as of its last collection. The others are of the address
    space: MMAP is anonymous memory that the program mapped (or its break), COMMIT is reserved memory made
    accessible, THREAD_STACK was mapped as a stack, FILE is backed by a file. PYTHON are the arenas of
    CPython's object heap. MANAGED is memory that stays in a managed heap, according to the runtime, and so
    part of COMMIT or of Python's arenas. DESCRIPTOR is not memory: a file descriptor counts as 1.
    """

    HEAP = "heap"
    MMAP = "mmap"
    COMMIT = "commit"
    THREAD_STACK = "thread-stack"
    FILE = "file"
    PYTHON = "python"
    MANAGED = "managed"
    GO_HEAP = "go-heap"
    DESCRIPTOR = "descriptor"


class SiteKey(Struct, frozen=True):
    """A call site of one process: allocation kind and stack (`stack_id` is the hash of its frames)."""

    kind: AllocationKind
    stack_id: int


class SiteCounters(Struct, frozen=True):
    """The running totals of one call site since the attach; estimates if blocks are sampled.

    `temporary_count` are the blocks that their thread freed before it allocated another. The variances of the
    estimates of live figures are in units of 2^16 bytes^2 and of 2^-16 blocks^2 (table/estimates.py).
    """

    live_bytes: int
    live_count: int
    allocated_bytes: int
    allocated_count: int
    temporary_count: int = 0
    peak_live_bytes: int = 0
    live_bytes_variance: int = 0
    live_count_variance: int = 0


class ThreadShare(Struct, frozen=True):
    """Memory that one thread allocated and that is still live."""

    tid: int
    comm: str
    live_bytes: int
    live_count: int
