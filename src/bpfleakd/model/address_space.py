"""The memory of a process, by use."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.container import ContainerBill
from bpfleakd.model.runtimes.managed import ManagedHeap


class MappingUsage(Struct, frozen=True):
    """A mapping and its bytes in memory or swapped out, including huge pages of hugetlbfs.

    `flags` are the kernel's two-letter VmFlags ("nr": MAP_NORESERVE, "gd": grows down).
    """

    mapping: Mapping
    shared: bool
    resident_bytes: int
    private_dirty_bytes: int
    swap_bytes: int
    flags: frozenset[str] = frozenset()


class MemoryStatus(Struct, frozen=True):
    """Figures of the whole process that its mappings do not show; 0 if the kernel does not report them."""

    peak_resident_bytes: int
    page_table_bytes: int


class MemoryUse(StrEnum):
    """The use of a part of an address space."""

    HEAP = "heap"
    MMAP = "mmap"
    COMMIT = "commit"
    THREAD_STACKS = "thread-stacks"
    FILES = "files"
    JIT = "jit"
    SHARED = "shared"
    RESERVED = "reserved"
    VDSO = "vdso"


class UseSummary(Struct, frozen=True):
    """The memory of one use. Growth is since the attach, negative if it shrank."""

    use: MemoryUse
    regions: int
    virtual_bytes: int
    resident_bytes: int
    private_dirty_bytes: int
    swap_bytes: int
    virtual_growth_bytes: int
    resident_growth_bytes: int


class BillKind(StrEnum):
    """The use of resident memory."""

    HEAP_LIVE = "heap_live"
    HEAP_FREE = "heap_free"
    MANAGED_LIVE = "managed_live"
    MANAGED_FREE = "managed_free"
    METASPACE = "metaspace"
    PYTHON = "python"
    MMAP = "mmap"
    STACK = "stack"
    FILE = "file"
    JIT = "jit"
    SHARED = "shared"
    UNKNOWN = "unknown"


class BillLine(Struct, frozen=True):
    """Memory of one kind, resident or swapped out. Growth is since the first bill, None in that one."""

    kind: BillKind
    bytes: int
    growth_bytes_per_s: float | None
    note: str = ""


class PinningSite(Struct, frozen=True):
    """A call site whose live blocks prevent the return of freed memory in the same pages.

    `free_bytes` is its share of that memory, `blocks` the number of its blocks that pin it.
    """

    site: str
    function: str | None
    module: str | None
    location: str | None
    free_bytes: int
    blocks: int


class MemoryShares(Struct, frozen=True):
    """What explains the resident memory of a process; the first five add up to it.

    `allocator_retained_bytes` is the heap's memory without the live blocks: freed memory that was not
    returned, blocks from before the attach and the allocator's own data. `explained_share` (0 to 1) is the
    share of everything but the rest.
    """

    tracked_heap_bytes: int
    tracked_mmap_bytes: int
    tracked_commit_bytes: int
    allocator_retained_bytes: int
    rest_bytes: int
    explained_share: float


# The name under which methods without a module are counted.
NO_MODULE = "(no module)"


class JitModule(Struct, frozen=True):
    """Methods compiled at run time since the attach, of one assembly, script or package."""

    module: str
    new_methods: int
    new_bytes: int


class AddressSpaceReport(Struct, frozen=True):
    """The memory of a process; `uses` lists those with memory.

    The `bill` adds up to resident and swapped memory; `growth_summary` is a sentence on its growth.
    `container` is the bill of the control group that limits the process; None without a limit. `pinned_by`
    are the call sites that pin most freed memory of glibc's.
    """

    pid: int
    comm: str
    attached_s: float
    virtual_bytes: int
    resident_bytes: int
    swap_bytes: int
    peak_resident_bytes: int
    page_table_bytes: int
    uses: tuple[UseSummary, ...]
    shares: MemoryShares
    jit_modules: tuple[JitModule, ...]
    losses: dict[str, int]
    managed: ManagedHeap | None = None
    bill: tuple[BillLine, ...] = ()
    growth_summary: str | None = None
    container: ContainerBill | None = None
    pinned_by: tuple[PinningSite, ...] = ()
