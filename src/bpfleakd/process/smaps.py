"""How much of each mapping is in memory: /proc/PID/smaps and /proc/PID/status.

The kernel walks the page tables for it and holds the target's memory map meanwhile, so that the target's own
calls of mmap wait: this is for questions, not for every tick.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from bpfleakd import errors
from bpfleakd.model.address_space import MappingUsage, MemoryStatus
from bpfleakd.process.mappings import parse_mappings
from bpfleakd.process.reading.reads import TargetFile
from bpfleakd.process.reading.refusals import reading

PROC = Path("/proc")
MAPPINGS_MAX = 262_144  # four times the default of vm.max_map_count

_STARTS_OF_MAPPINGS = frozenset(b"0123456789abcdef")
_RESIDENT = (b"Rss", b"Shared_Hugetlb", b"Private_Hugetlb")
_PRIVATE_DIRTY = (b"Private_Dirty", b"Private_Hugetlb")
_USED_LINES = (b"Rss:", b"Private_Dirty:", b"Shared_Hugetlb:", b"Private_Hugetlb:", b"Swap:", b"VmFlags:")


class Smaps(Struct, frozen=True):
    """The mappings by address; `left_out` is the number beyond the limit."""

    usages: tuple[MappingUsage, ...]
    left_out: int = 0


def read_smaps(pid: int, proc: Path = PROC, *, mappings_max: int = MAPPINGS_MAX) -> Smaps:
    """Read the mappings of a process with their memory.

    Raises NoSuchProcess, AccessDenied, NotYet if the process keeps its readers waiting, or KernelUnsupported
    on a kernel without smaps.
    """
    directory = proc / str(pid)
    path = directory / "smaps"
    with reading(pid, path):
        try:
            with TargetFile(pid, path) as file:
                smaps = parse_smaps(_lines(file.read_on()), mappings_max)
        except FileNotFoundError as error:
            if not directory.exists():
                raise
            raise errors.KernelUnsupported(
                "this kernel has no /proc/PID/smaps", "it needs CONFIG_PROC_PAGE_MONITOR"
            ) from error
    if not smaps.usages:
        raise errors.NoSuchProcess(f"process {pid} no longer has any memory")
    return smaps


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines including their ends."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def parse_smaps(lines: Iterable[bytes], mappings_max: int = MAPPINGS_MAX) -> Smaps:
    """Parse the lines of /proc/PID/smaps (proc_pid_smaps(5)); malformed ones are omitted."""
    usages: list[MappingUsage] = []
    left_out = 0
    first: bytes | None = None
    values: dict[bytes, bytes] = {}
    for line in lines:
        if line[0] in _STARTS_OF_MAPPINGS:
            if first is not None:
                usages += _usage(first, values)
            first, values = (line, {}) if len(usages) < mappings_max else (None, {})
            left_out += first is None
        elif line.startswith(_USED_LINES):
            name, _colon, value = line.partition(b":")
            values[name] = value
    if first is not None:
        usages += _usage(first, values)
    return Smaps(tuple(usages), left_out)


def read_status(pid: int, proc: Path = PROC) -> MemoryStatus:
    """Read the memory figures of a process. Raises NoSuchProcess."""
    try:
        text = (proc / str(pid) / "status").read_bytes()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise errors.NoSuchProcess(f"process {pid} has ended") from error
    values = dict(re.findall(rb"^(\w+):\s*(\d+)", text, re.MULTILINE))
    return MemoryStatus(
        peak_resident_bytes=int(values.get(b"VmHWM", 0)) * 1024,
        page_table_bytes=int(values.get(b"VmPTE", 0)) * 1024,
    )


def _usage(first: bytes, values: dict[bytes, bytes]) -> tuple[MappingUsage, ...]:
    """None or one: the first line of a mapping, and the values of the lines that follow it."""
    text = first.decode(errors="surrogateescape").removesuffix("\n")
    return tuple(
        MappingUsage(
            mapping=mapping,
            # "s" is what may be shared, also if it was mapped for reading only.
            shared=text.split(maxsplit=2)[1].endswith("s"),
            resident_bytes=_sum(values, _RESIDENT),
            private_dirty_bytes=_sum(values, _PRIVATE_DIRTY),
            swap_bytes=_sum(values, (b"Swap",)),
            flags=_flags(values.get(b"VmFlags", b"")),
        )
        for mapping in parse_mappings(text)
    )


@lru_cache(maxsize=256)
def _flags(text: bytes) -> frozenset[str]:
    return frozenset(text.decode(errors="replace").split())


def _sum(values: dict[bytes, bytes], names: Iterable[bytes]) -> int:
    total_bytes = 0
    for name in names:
        with contextlib.suppress(ValueError):
            total_bytes += int(values.get(name, b"0").removesuffix(b" kB\n")) * 1024
    return total_bytes
