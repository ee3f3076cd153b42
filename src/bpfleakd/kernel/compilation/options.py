"""What programs are made for."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from bpfleakd.kernel.programs import AttachMethod, WalkerKind

__all__ = ["Capacities", "LoadOptions"]


class Capacities(Struct, frozen=True):
    """Maximum entries of the maps; `process_sites` of the sites, and stacks, may be of one process."""

    processes: int
    sites: int
    stacks: int
    threads: int
    process_sites: int = 1 << 30
    unwind_rules: int = 16_384
    unwind_shards: int = 256
    probe_operands: int = 256


class LoadOptions(Struct, frozen=True):
    """How programs are made. `method` and `walker` None take the best that works.

    `cache_directory` None keeps nothing.
    """

    capacities: Capacities
    method: AttachMethod | None = None
    walker: WalkerKind | None = None
    cache_directory: Path | None = None
