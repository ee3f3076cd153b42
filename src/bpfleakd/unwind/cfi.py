"""Call frame information: the entries of .eh_frame and .debug_frame.

A common information entry (CIE) holds what many functions share, a frame description entry (FDE) one range of
addresses and the call frame instructions for it (DWARF 5, section 6.4; the Linux Standard Base 5.0, core,
section 10.6 has the differences of .eh_frame).

Rules:
- Offsets are into the section, addresses are the file's own (vaddr).
- The section may be hostile. Every fault of an entry is `MalformedCfi`, with the reason.
- Entries of an honest section do not overlap, so together they are at most as long as the section. That is
  the budget: when it is spent, further entries are refused, and time is linear whatever they claim.
- Everything but an FDE's instructions is read here; the instructions are bytes for `instructions`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from bpfleakd.unwind.encoding import read_pointer, read_size, read_sleb128, read_uleb128, skip_pointer
from bpfleakd.unwind.malformed import MalformedCfi, SkipReason
from bpfleakd.unwind.registers import RIP

# libLLVM 22 has 161,000.
ENTRIES_MAX = 1 << 21

_EXTENDED_LENGTH = 0xFFFFFFFF
_ADDRESS_BYTES = 8
# "eh", from GCC 2, is followed by another pointer and has no 'z'; it is not in use any more.
_VERSIONS = (1, 3, 4)

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I32 = struct.Struct("<i")
_NOT_ZERO = re.compile(rb"[^\0]")


class Cie(Struct, frozen=True):
    """A common information entry. `instructions` set up what every FDE of it starts with."""

    offset: int
    code_alignment: int
    data_alignment: int
    pointer_encoding: int
    has_augmentation_data: bool
    is_signal_frame: bool
    instructions: bytes


class Fde(NamedTuple):
    """A frame description entry: `size_bytes` of text from `start`."""

    start: int
    size_bytes: int
    cie: Cie
    instructions: bytes


class _Entry(NamedTuple):
    """What CIEs and FDEs have in common. `body` is what follows the CIE identity or pointer."""

    is_cie: bool
    cie_offset: int
    body: int
    end: int


class _Augmentation(NamedTuple):
    has_data: bool = False
    pointer_encoding: int = 0
    is_signal_frame: bool = False


class CallFrameSection:
    """The entries of one section; `is_eh_frame` selects the format."""

    def __init__(self, data: bytes | memoryview, vaddr: int, is_eh_frame: bool) -> None:
        self._data = memoryview(data).cast("B")
        self._vaddr = vaddr
        self._is_eh_frame = is_eh_frame
        self._cies: dict[int, Cie | None] = {}
        self._budget_bytes = len(self._data)
        self._budget_fdes = ENTRIES_MAX

    def fde_offsets(self) -> Iterator[int]:
        """Yield the offset of every FDE in the order of the section, by walking through it.

        Stops at a length that leads outside, and after `ENTRIES_MAX`; `fde_at` of the last offset then states
        why. A terminator (length 0) does not end the section: `ld -r` leaves some in the middle, and readelf
        continues as well.
        """
        data, offset, entry_count = self._data, 0, 0
        while offset + 4 <= len(data):
            if not any(data[offset : offset + 4]):
                something = _NOT_ZERO.search(data, offset)
                if something is None:
                    return
                # Entries are aligned to 4 bytes; and at least this terminator is behind us.
                offset += max(4, (something.start() - offset) & ~3)
                continue
            entry_count += 1
            if entry_count > ENTRIES_MAX:
                self._budget_fdes = 0
                yield offset
                return
            try:
                entry = self._entry_at(offset)
            except MalformedCfi:
                yield offset
                return
            if not entry.is_cie:
                yield offset
            offset = entry.end

    def fde_at(self, offset: int) -> Fde:
        """Return the FDE at `offset`. Raises `MalformedCfi`."""
        if not 0 <= offset <= len(self._data) - 4:
            raise MalformedCfi(SkipReason.BAD_POINTER)
        self._budget_fdes -= 1
        if self._budget_fdes < 0:
            raise MalformedCfi(SkipReason.LIMIT)
        try:
            return self._fde_at(offset)
        except (IndexError, struct.error):
            raise MalformedCfi(SkipReason.TRUNCATED) from None

    def _fde_at(self, offset: int) -> Fde:
        data = self._data
        entry = self._entry_at(offset)
        if entry.is_cie:
            raise MalformedCfi(SkipReason.BAD_POINTER)
        cie = self._cie_at(entry.cie_offset)
        start, position = read_pointer(data, entry.body, cie.pointer_encoding, self._vaddr)
        length, position = read_size(data, position, cie.pointer_encoding)
        if cie.has_augmentation_data:
            augmentation_bytes, position = read_uleb128(data, position)
            position += augmentation_bytes
        self._spend(entry.end - offset, position, entry.end)
        return Fde(start, length, cie, bytes(data[position : entry.end]))

    def _cie_at(self, offset: int) -> Cie:
        if offset not in self._cies:
            self._cies[offset] = self._read_cie(offset)
        cie = self._cies[offset]
        if cie is None:
            raise MalformedCfi(SkipReason.BAD_CIE)
        return cie

    def _read_cie(self, offset: int) -> Cie | None:
        if not 0 <= offset <= len(self._data) - 4:
            return None
        try:
            return self._cie_of_entry(offset)
        except (IndexError, struct.error, MalformedCfi):
            return None

    def _cie_of_entry(self, offset: int) -> Cie:
        data, entry = self._data, self._entry_at(offset)
        version = data[entry.body]
        # An FDE that is named as a CIE, possibly by itself, ends here: do not follow such a chain.
        if not entry.is_cie or version not in _VERSIONS:
            raise MalformedCfi(SkipReason.BAD_CIE)
        letters, position = self._string_at(entry.body + 1, entry.end)
        if version == 4:
            if (data[position], data[position + 1]) != (_ADDRESS_BYTES, 0):
                raise MalformedCfi(SkipReason.BAD_CIE)
            position += 2
        code_alignment, position = read_uleb128(data, position)
        data_alignment, position = read_sleb128(data, position)
        column, position = (data[position], position + 1) if version == 1 else read_uleb128(data, position)
        if column != RIP:
            raise MalformedCfi(SkipReason.BAD_CIE)
        augmentation, position = self._augmentation(letters, position)
        self._spend(entry.end - offset, position, entry.end)
        return Cie(
            offset,
            code_alignment,
            data_alignment,
            augmentation.pointer_encoding,
            augmentation.has_data,
            augmentation.is_signal_frame,
            bytes(data[position : entry.end]),
        )

    def _augmentation(self, letters: bytes, position: int) -> tuple[_Augmentation, int]:
        data = self._data
        if not letters:
            return _Augmentation(), position
        if not letters.startswith(b"z"):
            # Without a length it is unknown where the instructions begin.
            raise MalformedCfi(SkipReason.BAD_CIE)
        data_bytes, position = read_uleb128(data, position)
        end, pointer_encoding = position + data_bytes, 0
        for letter in letters[1:].decode("latin-1"):
            if letter == "R":
                pointer_encoding, position = data[position], position + 1
            elif letter == "P":
                position = skip_pointer(data, position + 1, data[position], self._vaddr)
            elif letter == "L":
                position += 1
            elif letter not in "SB":
                # An unknown letter hides how much data it has, so that what follows is unknown too.
                break
        return _Augmentation(True, pointer_encoding, b"S" in letters), end

    def _entry_at(self, offset: int) -> _Entry:
        data = self._data
        try:
            (size_bytes,) = _U32.unpack_from(data, offset)
            position, is_extended = offset + 4, size_bytes == _EXTENDED_LENGTH
            if is_extended:
                (size_bytes,) = _U64.unpack_from(data, position)
                position += 8
            # In .eh_frame this field keeps its 4 bytes, in .debug_frame it grows.
            layout = _I32 if self._is_eh_frame else _U64 if is_extended else _U32
            (pointer,) = layout.unpack_from(data, position)
        except struct.error:
            raise MalformedCfi(SkipReason.TRUNCATED) from None
        body, end = position + layout.size, position + size_bytes
        if not body <= end <= len(data):
            raise MalformedCfi(SkipReason.TRUNCATED)
        if self._is_eh_frame:
            return _Entry(pointer == 0, position - pointer, body, end)
        return _Entry(pointer == (1 << 8 * layout.size) - 1, pointer, body, end)

    def _string_at(self, position: int, end: int) -> tuple[bytes, int]:
        # The longest known augmentation has 6 letters.
        text, terminator, _ = bytes(self._data[position : min(end, position + 16)]).partition(b"\0")
        if not terminator:
            raise MalformedCfi(SkipReason.TRUNCATED)
        return text, position + len(text) + 1

    def _spend(self, entry_bytes: int, instructions_begin: int, end: int) -> None:
        if not instructions_begin <= end <= len(self._data):
            raise MalformedCfi(SkipReason.TRUNCATED)
        self._budget_bytes -= entry_bytes
        if self._budget_bytes < 0:
            raise MalformedCfi(SkipReason.LIMIT)
