"""Limits of the memory of a process."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class MemoryLimitKind(StrEnum):
    """What limits the memory of a process: a control group, RLIMIT_AS, RLIMIT_DATA, the machine, or a runtime
    (-Xmx)."""

    CGROUP = "cgroup"
    ADDRESS_SPACE = "address-space"
    DATA = "data"
    HOST = "host"
    MANAGED_HEAP = "managed-heap"


class MemoryLimit(Struct, frozen=True):
    """A limit, and the memory used of it."""

    kind: MemoryLimitKind
    limit_bytes: int
    used_bytes: int
