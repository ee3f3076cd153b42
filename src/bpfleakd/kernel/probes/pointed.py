"""Functions without a symbol that a pointer in a named object leads to.

    pointed_functions(image, {"PyCode_Type.tp_dealloc"})  # {"PyCode_Type.tp_dealloc": vaddr}

Such a function is static, so a stripped file has no name for it. It is called through the pointer. A compiler
that knows from a profile which function the pointer mostly has may compare both, and inline the function for
that case; a probe at its entry sees no such call. A comparison needs the function's address, so a function
whose address occurs in code is left out.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from bpfleakd.elf.image import ElfImage, Segment
from bpfleakd.elf.jump_slots import RELOCATION
from bpfleakd.elf.named_symbols import find_symbols

# Offsets in the objects: PyTypeObject has been the same since Python 3, but in free-threaded builds.
_POINTERS = {"PyCode_Type.tp_dealloc": ("PyCode_Type", 48)}

_R_X86_64_RELATIVE = 8
_POINTER_BYTES = 8
_LEA, _LEA_BYTES = 0x8D, 6
# The ModRM byte of an operand relative to the next instruction; three bits are a register.
_RIP_RELATIVE, _RIP_RELATIVE_MASK = 0x05, 0xC7


def pointed_functions(image: ElfImage, names: Collection[str]) -> dict[str, int]:
    """The functions of these names (of _POINTERS) in a file, as virtual addresses. Raises BadElf."""
    wanted = {name: _POINTERS[name] for name in names if name in _POINTERS}
    objects = find_symbols(image, {name for name, _offset in wanted.values()}) if wanted else {}
    found = {
        name: _pointer_at(image, objects[of].vaddr + offset)
        for name, (of, offset) in wanted.items()
        if of in objects
    }
    return {
        name: vaddr
        for name, vaddr in found.items()
        if _is_code(image, vaddr) and not _is_taken_in_code(image, vaddr)
    }


def _pointer_at(image: ElfImage, place: int) -> int:
    """What the loader writes there, in the file's own addresses."""
    section = image.section(".rela.dyn")
    if section is not None:
        data = section.data
        rows = np.frombuffer(data, RELOCATION, len(data) // RELOCATION.itemsize)
        found = rows[(rows["slot"] == place) & (rows["type"] == _R_X86_64_RELATIVE)]
        if len(found):
            return int(found[0]["addend"])
    # A program at fixed addresses, or a packed relocation (RELR): the file has it.
    return int.from_bytes(image.read(place, _POINTER_BYTES), "little")


def _is_code(image: ElfImage, vaddr: int) -> bool:
    """Whether there is code: in free-threaded builds heads are longer, a size is there."""
    return any(
        each.executable and each.vaddr <= vaddr < each.vaddr + each.file_size_bytes for each in image.segments
    )


def _is_taken_in_code(image: ElfImage, vaddr: int) -> bool:
    return any(_takes_address(image, each, vaddr) for each in image.segments if each.executable)


def _takes_address(image: ElfImage, segment: Segment, vaddr: int) -> bool:
    """Whether an instruction in the segment may have the address as a value: never a wrong no."""
    code = image.read(segment.vaddr, segment.file_size_bytes)
    # Only in a program at fixed addresses, an address can be a constant of 32 bits.
    if image.segments[0].vaddr and vaddr < 1 << 32 and vaddr.to_bytes(4, "little") in code:
        return True
    text = np.frombuffer(code, np.uint8)
    is_relative = text[1 : 2 - _LEA_BYTES] & _RIP_RELATIVE_MASK == _RIP_RELATIVE
    places = np.flatnonzero((text[: 1 - _LEA_BYTES] == _LEA) & is_relative)
    distances = np.zeros(len(places), np.uint32)
    for index in range(4):
        distances |= text[places + 2 + index].astype(np.uint32) << np.uint32(8 * index)
    targets = segment.vaddr + places + _LEA_BYTES + distances.view(np.int32)
    return bool((targets == vaddr).any())
