"""Finds the classes of vtables by the symbols of the vtables.

A vtable has a symbol even in a program without type information (-fno-rtti), unless it is stripped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import SYMBOL_ROW
from bpfleakd.elf.section import Section

# Itanium C++ ABI, section 5.1.4.1: the symbol of a virtual table.
_PREFIX = b"_ZTV"
# The distance to the object's beginning and the type information come first (section 2.5.2).
_HEAD_BYTES = 16
_NAME_BYTES_MAX = 1_024
_OBJECT = 1
_TYPE_MASK = 0xF


def vtable_classes(image: ElfImage, vaddrs: Sequence[int]) -> dict[int, str]:
    """The mangled class names of the vtables at these addresses, as objects point to them.

    Raises `BadElf`.
    """
    wanted = np.unique(np.array(vaddrs, np.uint64))
    found: dict[int, str] = {}
    for name in (".symtab", ".dynsym"):
        section = image.section(name)
        if section is not None and section.has_bytes and len(wanted):
            found = {**_found_in(image, section, wanted), **found}
    return found


def _found_in(image: ElfImage, section: Section, wanted: NDArray[np.uint64]) -> dict[int, str]:
    if not 0 < section.header.link < len(image.sections):
        return {}
    data, strings = section.data, bytes(image.sections[section.header.link].data)
    rows = np.frombuffer(data, SYMBOL_ROW, len(data) // SYMBOL_ROW.itemsize)
    is_object = (rows["section"] != 0) & (rows["info"] & _TYPE_MASK == _OBJECT) & (rows["size"] > _HEAD_BYTES)
    rows = rows[is_object]
    # After the head; further after it if offsets of virtual bases precede it.
    first = np.searchsorted(wanted, rows["value"] + np.uint64(_HEAD_BYTES))
    last = np.searchsorted(wanted, rows["value"] + rows["size"])
    found: dict[int, str] = {}
    for row in np.flatnonzero(last > first).tolist():
        start = int(rows["name"][row])
        name = strings[start : strings.find(b"\0", start, start + _NAME_BYTES_MAX)]
        if name.startswith(_PREFIX) and name.isascii():
            text = name.removeprefix(_PREFIX).decode()
            found |= dict.fromkeys(wanted[first[row] : last[row]].tolist(), text)
    return found
