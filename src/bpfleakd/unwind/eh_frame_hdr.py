"""The sorted table in .eh_frame_hdr, which gives the place of each function's FDE in .eh_frame.

It is what the C++ runtime itself searches, and it has no entries for functions that the linker dropped.
Layout: Linux Standard Base 5.0, core, section 10.6.2 "Exception frame header". Only the encodings that
linkers write on x86-64 are read; for anything else the caller walks through .eh_frame instead.
"""

from __future__ import annotations

import struct

import numpy as np

from bpfleakd.unwind.encoding import PCREL_SDATA4, read_pointer, read_size
from bpfleakd.unwind.malformed import MalformedCfi

_VERSION = 1
_OMITTED = 0xFF
_DATAREL_SDATA4 = 0x3B
_HEADER_BYTES, _ENTRY_BYTES = 4, 8


def fde_offsets(
    hdr: bytes | memoryview, hdr_vaddr: int, eh_frame_vaddr: int, eh_frame_bytes: int
) -> np.ndarray | None:
    """Return the FDEs' offsets into .eh_frame, int64, ascending, without repetitions.

    None if there is no table, if it belongs to another .eh_frame, or if it is unusable.
    """
    table = fdes_by_start(hdr, hdr_vaddr, eh_frame_vaddr)
    if table is None:
        return None
    offsets = table[1]
    offsets = np.unique(offsets[(offsets >= 0) & (offsets < eh_frame_bytes)])
    return offsets if len(offsets) else None


def fdes_by_start(
    hdr: bytes | memoryview, hdr_vaddr: int, eh_frame_vaddr: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return where functions begin (vaddr) and where their FDEs are in .eh_frame, int64, as they are listed.

    Linkers list them by address; nothing guarantees that they did, nor that an offset is inside. None as for
    `fde_offsets`.
    """
    try:
        table_offset, entry_count = _table_at(hdr, hdr_vaddr, eh_frame_vaddr)
    except (MalformedCfi, IndexError, struct.error):
        return None
    entry_count = min(entry_count, (len(hdr) - table_offset) // _ENTRY_BYTES)
    if entry_count <= 0:
        return None
    # Pairs of (address of the function, address of its FDE), both relative to the header.
    pairs = np.frombuffer(hdr, "<i4", entry_count * 2, table_offset).astype(np.int64)
    return pairs[0::2] + hdr_vaddr, pairs[1::2] + (hdr_vaddr - eh_frame_vaddr)


def _table_at(hdr: bytes | memoryview, hdr_vaddr: int, eh_frame_vaddr: int) -> tuple[int, int]:
    """Return the table's offset and its number of entries, which is 0 where it cannot be used."""
    version, frame_encoding, count_encoding, table_encoding = hdr[0], hdr[1], hdr[2], hdr[3]
    encodings_are_usual = frame_encoding == PCREL_SDATA4 and table_encoding == _DATAREL_SDATA4
    if version != _VERSION or not encodings_are_usual or count_encoding == _OMITTED:
        return 0, 0
    vaddr, position = read_pointer(hdr, _HEADER_BYTES, frame_encoding, hdr_vaddr)
    entry_count, position = read_size(hdr, position, count_encoding)
    return (position, entry_count) if vaddr == eh_frame_vaddr else (0, 0)
