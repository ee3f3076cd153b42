"""The vdso as a module, so its frames have names."""

from __future__ import annotations

import os
from functools import cache

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.vdso import VDSO, own_vdso_image
from bpfleakd.errors import BadElf
from bpfleakd.symbols.module_cache import Module


class Vdso(Struct, frozen=True):
    """The vdso as a module, and the size of its mapping."""

    module: Module
    size_bytes: int


@cache
def own_vdso() -> Vdso | None:
    """This process' vdso; None without one."""
    try:
        image, size_bytes = own_vdso_image()
    except BadElf:
        return None
    return Vdso(Module(_in_a_file(image), VDSO, lambda _image, _path: None, VDSO), size_bytes)


def _in_a_file(image: ElfImage) -> ElfImage:
    """The same image in a file, to be passed to a helper."""
    file = os.memfd_create("vdso", os.MFD_CLOEXEC)
    try:
        os.write(file, image.source.read(0, image.source.size_bytes))
        return ElfImage.open(file)
    finally:
        os.close(file)
