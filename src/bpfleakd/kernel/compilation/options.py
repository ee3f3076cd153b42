"""Options for compiling and loading the programs."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from bpfleakd.kernel.programs import AttachMethod, SyscallMethod, WalkerKind


class Capacities(Struct, frozen=True):
    """Maximum entries of the maps; `process_sites` is the maximum of sites, and of stacks, per process."""

    processes: int
    sites: int
    stacks: int
    threads: int
    process_sites: int = 1 << 30
    unwind_rules: int = 16_384
    unwind_shards: int = 256
    probe_operands: int = 256


class LoadOptions(Struct, frozen=True):
    """How to build programs. `method`, `walker` and `syscalls` None choose the best that works.

    With `cache_directory` None, nothing is cached.
    """

    capacities: Capacities
    method: AttachMethod | None = None
    walker: WalkerKind | None = None
    cache_directory: Path | None = None
    syscalls: SyscallMethod | None = None
