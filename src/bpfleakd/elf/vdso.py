"""The vdso: the small library that the kernel maps into every process.

It is the same in all 64-bit processes of a running kernel and in no file, so it is read from this process'
memory.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf

# Its name in /proc/PID/maps.
VDSO = "[vdso]"


def own_vdso_image(proc_self: Path = Path("/proc/self")) -> tuple[ElfImage, int]:
    """This process' vdso, and the size of its mapping in bytes. Raises `BadElf` without one."""
    for line in (proc_self / "maps").read_text().splitlines():
        if line.endswith(VDSO):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            return ElfImage.from_bytes(ctypes.string_at(start, end - start), VDSO), end - start
    raise BadElf("this process has no vdso")
