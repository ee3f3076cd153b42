"""Hand-made call frame information, entry by entry, valid or invalid as a test requires."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from bpfleakd.unwind.build import FrameSections

TEXT_START, TEXT_END = 0x1000, 0x9000
EH_FRAME_VADDR = 0x10000
EH_FRAME_HDR_VADDR = 0xF000

DEF_CFA_RSP_8 = bytes((0x0C, 7, 8))
DEF_CFA_RBP_16 = bytes((0x0C, 6, 16))
RETURN_ADDRESS_AT_MINUS_8 = bytes((0x80 | 16, 1))
RBP_AT_MINUS_16 = bytes((0x80 | 6, 2))
USUAL_CIE = DEF_CFA_RSP_8 + RETURN_ADDRESS_AT_MINUS_8
ADVANCE_1 = bytes((0x41,))


def advance(offset: int) -> bytes:
    """DW_CFA_advance_loc4"""
    return b"\x04" + struct.pack("<I", offset)


def def_cfa_offset(offset: int) -> bytes:
    """DW_CFA_def_cfa_offset, of less than 128"""
    return bytes((0x0E, offset))


@dataclass
class EhFrame:
    """An .eh_frame under construction, at `EH_FRAME_VADDR`."""

    data: bytearray = field(default_factory=bytearray)
    functions: list[tuple[int, int]] = field(default_factory=list)

    def entry(self, body: bytes, length: int | None = None) -> int:
        """Add an entry that says it has `length` bytes, and return its offset."""
        offset = len(self.data)
        body += bytes(-len(body) % 4)
        self.data += struct.pack("<I", len(body) if length is None else length) + body
        return offset

    def cie(
        self,
        instructions: bytes = USUAL_CIE,
        augmentation: bytes = b"zR",
        augmentation_data: bytes = b"\x1b",
        version: int = 1,
        return_column: int = 16,
    ) -> int:
        """Add a CIE: code alignment 1, data alignment -8, addresses relative to themselves in 32 bits."""
        body = struct.pack("<IB", 0, version) + augmentation + b"\0" + bytes((1, 0x78, return_column))
        if augmentation.startswith(b"z"):
            body += bytes((len(augmentation_data),))
        return self.entry(body + augmentation_data + instructions)

    def fde(
        self, cie: int, start: int, size_bytes: int, instructions: bytes = b"", length: int | None = None
    ) -> int:
        """Add an FDE for the text from `start`."""
        offset = len(self.data)
        relative = start - (EH_FRAME_VADDR + offset + 8)
        body = struct.pack("<iiIB", offset + 4 - cie, relative, size_bytes, 0)
        self.functions.append((start, offset))
        return self.entry(body + instructions, length)

    def hdr(self, functions: list[tuple[int, int]] | None = None, count: int | None = None) -> bytes:
        """Return an .eh_frame_hdr for the FDEs (start, offset), by default for all of them."""
        functions = sorted(self.functions) if functions is None else functions
        head = struct.pack("<BBBBi", 1, 0x1B, 0x03, 0x3B, EH_FRAME_VADDR - EH_FRAME_HDR_VADDR - 4)
        pairs = b"".join(
            struct.pack("<ii", start - EH_FRAME_HDR_VADDR, EH_FRAME_VADDR + offset - EH_FRAME_HDR_VADDR)
            for start, offset in functions
        )
        return head + struct.pack("<I", len(functions) if count is None else count) + pairs

    def sections(
        self, hdr: bytes = b"", text_start: int = TEXT_START, text_end: int = TEXT_END, build_id: str = "abcd"
    ) -> FrameSections:
        """Return all sections for the builder."""
        return FrameSections(
            build_id,
            text_start,
            text_end,
            bytes(self.data),
            EH_FRAME_VADDR,
            hdr,
            EH_FRAME_HDR_VADDR if hdr else 0,
        )
