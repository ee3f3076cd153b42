"""Lost blocks."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from bpfleakd.model.code.stack import Frame, StackEnd
from bpfleakd.model.process import ProcessSummary


class Reachability(StrEnum):
    """Whether something still points to a block; analysis/reachability.py has the definitions."""

    DIRECTLY_LOST = "directly-lost"
    INDIRECTLY_LOST = "indirectly-lost"
    POSSIBLY_LOST = "possibly-lost"
    STILL_REACHABLE = "still-reachable"


class ReachabilitySums(Struct, frozen=True):
    """Number and total size of the blocks of each kind."""

    directly_lost_bytes: int = 0
    directly_lost_count: int = 0
    indirectly_lost_bytes: int = 0
    indirectly_lost_count: int = 0
    possibly_lost_bytes: int = 0
    possibly_lost_count: int = 0
    still_reachable_bytes: int = 0
    still_reachable_count: int = 0


class ScanMethod(StrEnum):
    """How the process' memory was read: while it was stopped, at first stopped, or running."""

    STOPPED = "stopped"
    PARTLY_STOPPED = "partly-stopped"
    RUNNING = "running"


class ScanCaveat(StrEnum):
    """Why a scan may be wrong or incomplete."""

    SAMPLED = "sampled"
    BLOCKS_MISSED = "blocks-missed"
    MEMORY_UNREAD = "memory-unread"
    NOT_STOPPED = "not-stopped"
    NO_REGISTERS = "no-registers"


class ScannedBlock(Struct, frozen=True):
    """A block that is lost, possibly or for certain."""

    address: int
    size_bytes: int
    age_s: float
    tid: int
    comm: str
    reachability: Reachability


class ScannedSite(Struct, frozen=True):
    """The blocks of one call site by kind. `blocks` are lost ones, oldest first, up to a limit.

    `reachable` is true if none is lost, false if lost blocks have half of the bytes or more, else None.
    """

    site: str
    function: str | None
    module: str | None
    location: str | None
    reachable: bool | None
    sums: ReachabilitySums
    blocks: tuple[ScannedBlock, ...]
    left_out_count: int
    stack: tuple[Frame, ...]
    truncated: StackEnd | None


class ScanReport(Struct, frozen=True):
    """The lost blocks among those at least `older_than_s` old, the worst site first.

    `stopped_s` is how long the process was stopped, in one or two pieces; `young_count` blocks were too young
    for a scan. `caveats` are the limits of the result. Suppressed sites are not in `sites`, but in the sums,
    and by pattern in `suppressed`. In `known_heap_bytes` of memory, freed blocks are recognized and point to
    nothing; elsewhere freed memory counts as in use.
    """

    process: ProcessSummary
    older_than_s: float
    method: ScanMethod
    stopped_s: float
    took_s: float
    read_bytes: int
    caveats: tuple[ScanCaveat, ...]
    young_bytes: int
    young_count: int
    sums: ReachabilitySums
    sites: tuple[ScannedSite, ...]
    suppressed: dict[str, ReachabilitySums]
    losses: dict[str, int]
    known_heap_bytes: int = 0
