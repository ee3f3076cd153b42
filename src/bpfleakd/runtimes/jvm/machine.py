"""The JVM in a process: its library, version and structure layouts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import find_symbols
from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.layout import CONSTANTS, TYPES, FlagLayout, JvmLayout, flags_of, layout_of
from bpfleakd.runtimes.jvm.vm_structs import EXPORTED, read_vm_structs

_LIBRARY = "libjvm.so"
_RELEASE_MAX_BYTES = 128
_MAJOR = re.compile(r"(\d{1,3})")
_OLDEST = 11


class Unsupported(Exception):
    """Why a JVM cannot be read: the end of a sentence about the process. `flags`: its options, if found."""

    def __init__(self, reason: str, flags: FlagLayout | None = None) -> None:
        super().__init__(reason)
        self.flags = flags


class Machine(Struct, frozen=True):
    """A JVM, by its own description."""

    version: str
    layout: JvmLayout


def find_library(mappings: Sequence[Mapping]) -> Mapping | None:
    """The mapped code of libjvm.so; None if the process has none."""
    return next((m for m in mappings if m.executable and os.path.basename(m.path) == _LIBRARY), None)


def read_machine(
    library: Mapping, open_image: Callable[[Mapping], AbstractContextManager[ElfImage]], memory: RemoteMemory
) -> Machine:
    """Read the JVM's description of itself. Raises Unsupported, or OSError if the process has ended."""
    try:
        with open_image(library) as image:
            symbols = find_symbols(image, EXPORTED)
            vaddr = image.vaddr_of(library.offset)
    except (BadElf, OSError) as error:
        raise Unsupported(f"its library cannot be read: {error}") from error
    if vaddr is None or symbols.keys() < set(EXPORTED):
        raise Unsupported("its library does not publish its structures (gHotSpotVMStructs)")
    bias = library.start - vaddr
    addresses = {name: symbol.vaddr + bias for name, symbol in symbols.items()}
    flags = None
    try:
        structs = read_vm_structs(memory, addresses, TYPES, CONSTANTS)
        flags = flags_of(structs)
        release = structs.statics["Abstract_VM_Version", "_s_vm_release"]
        version = memory.text(memory.word(release), _RELEASE_MAX_BYTES).decode("ascii", "replace")
        found = _MAJOR.match(version)
        if found is None or int(found[1]) < _OLDEST:
            reason = f"version {version!r} is not supported: {_OLDEST} and later are"
            raise Unsupported(reason, flags)
        return Machine(version.partition("+")[0], layout_of(structs, int(found[1])))
    except (KeyError, ValueError) as error:
        raise Unsupported(f"its structures are not as expected: {error}", flags) from error
