"""The vdso: the small library that the kernel maps into every process.

It is the same in all 64-bit processes of a running kernel and in no file, so its names are read from
our own.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.symbols.module_cache import Module

__all__ = ["VDSO", "Vdso", "own_vdso"]

# What /proc/PID/maps calls it.
VDSO = "[vdso]"


@dataclass(frozen=True, slots=True)
class Vdso:
    """The vdso as a module, and how much memory it is mapped into."""

    module: Module
    size_bytes: int


@cache
def own_vdso() -> Vdso | None:
    """Return our own vdso; None without one."""
    maps = Path("/proc/self/maps").read_text()
    line = next((line for line in maps.splitlines() if line.endswith(VDSO)), None)
    if line is None:
        return None
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    try:
        image = ElfImage.from_bytes(ctypes.string_at(start, end - start), VDSO)
    except BadElf:
        return None
    return Vdso(Module(image, VDSO, Path("/")), end - start)
