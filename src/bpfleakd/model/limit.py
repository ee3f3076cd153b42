"""Limits of the memory of a process."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

__all__ = ["MemoryLimit", "MemoryLimitKind"]


class MemoryLimitKind(StrEnum):
    """The kinds of limits on the memory of a process: control groups, RLIMIT_AS, RLIMIT_DATA, the machine."""

    CGROUP = "cgroup"
    ADDRESS_SPACE = "address-space"
    DATA = "data"
    HOST = "host"


class MemoryLimit(Struct, frozen=True):
    """A limit, and what is used of it."""

    kind: MemoryLimitKind
    limit_bytes: int
    used_bytes: int
