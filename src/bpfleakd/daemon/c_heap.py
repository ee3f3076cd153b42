"""The daemon's own C heap: it is not to hold memory that could serve others (mallopt(3), malloc_trim(3))."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["keep_small", "trim"]

# malloc.h
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_libc = ctypes.CDLL(None)


def keep_small() -> None:
    """Have large blocks mapped, and all threads share one heap. Another C library than glibc stays as it is.

    glibc maps blocks above a certain size separately, and unmaps them when they are freed. It raises this
    size to that of any block freed; then the arrays of one large table stay in the heap: 11 MB of 66 with a
    process of 26 files. Each thread gets its own heap, though only one of ours works at a time: 1 MB.

    A heap that gives back its end at every 128 KiB asks for it again at once: a report of a thousand sites
    took twice as long. `trim` gives it back.
    """
    with contextlib.suppress(AttributeError):
        _libc.mallopt(_M_MMAP_THRESHOLD, 128 << 10)
        _libc.mallopt(_M_ARENA_MAX, 1)
        _libc.mallopt(_M_TRIM_THRESHOLD, 32 << 20)
        _libc.mallopt(_M_TOP_PAD, 1 << 20)


def trim() -> None:
    """Give back whole pages that are free between blocks, which glibc never does by itself.

    It takes a millisecond for a heap of 20 MB.
    """
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)
