"""The memory of a container: of a control group with a limit, and everything that runs in it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class ContainerKind(StrEnum):
    """Kinds of memory that a control group is charged for.

    FILE is the page cache, without SHMEM. KERNEL is kernel memory of unknown kind: all of it in cgroup v1.
    OTHER is the unnamed rest: charges that each processor holds in advance, and pages on their way to swap.
    """

    ANON = "anon"
    FILE = "file"
    SHMEM = "shmem"
    SLAB = "slab"
    SOCK = "sock"
    KERNEL_STACK = "kernel_stack"
    PAGE_TABLES = "page_tables"
    PERCPU = "percpu"
    VMALLOC = "vmalloc"
    HUGETLB = "hugetlb"
    KERNEL = "kernel_other"
    OTHER = "other"


class GroupMemory(Struct, frozen=True):
    """The kernel's figures on a control group and its descendants; `parts` has the nonzero ones.

    `cgroup` is its path in its hierarchy, `version` that of the hierarchy, 1 or 2.
    """

    cgroup: str
    version: int
    limit_bytes: int
    used_bytes: int
    parts: dict[ContainerKind, int]


class ContainerLine(Struct, frozen=True):
    """Memory of one kind. Growth is since the first bill, None in that one.

    `process_bytes` is an upper bound of one process' part: it may map files that another control group is
    charged for. None if the kernel does not report it.
    """

    kind: ContainerKind
    bytes: int
    growth_bytes_per_s: float | None
    process_bytes: int | None


class ContainerBill(Struct, frozen=True):
    """The memory of the control group that limits a process, by kind, most bytes first.

    The lines add up to `used_bytes`, unless the kernel took its figures at different moments.
    `growth_summary` is a sentence on what grows; None if the container does not grow.
    """

    cgroup: str
    version: int
    limit_bytes: int
    used_bytes: int
    lines: tuple[ContainerLine, ...]
    growth_summary: str | None = None
