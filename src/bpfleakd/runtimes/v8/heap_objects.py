"""Objects of V8's heap in another process: tags, types and texts.

All of it is untrusted, and a collector may move it while it is read. So lengths and depths are bounded, and
the type in an object's map is checked. OSError and ValueError mean that no such object exists.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.v8.constants import Constants

SMI_SHIFT = 32
_OBJECT_TAG, _TAG_MASK = 1, 3
# For a text composed of others or cut from others: the depth, and the number of parts.
_DEPTH_MAX = 8
_PIECES_MAX = 64
_TWO_BYTES = 2


def is_object(word: int) -> bool:
    """Whether a word is a strong pointer to an object."""
    return word & _TAG_MASK == _OBJECT_TAG


def is_small_integer(word: int) -> bool:
    """Whether a word is an integer of 32 bits, which V8 stores in the upper half."""
    return word & (1 << SMI_SHIFT) - 1 == 0


class HeapObjects:
    """Reads objects by their tagged pointers."""

    def __init__(self, memory: RemoteMemory, constants: Constants) -> None:
        self.constants = constants
        self._memory = memory

    def read(self, pointer: int, offset: int, size_bytes: int) -> bytes:
        """Bytes of an object. Raises OSError or ValueError."""
        if not is_object(pointer):
            raise ValueError(f"{pointer:#x} is not a pointer to an object")
        return self._memory.read(pointer - _OBJECT_TAG + offset, size_bytes)

    def word(self, pointer: int, offset: int) -> int:
        """A field of an object. Raises OSError or ValueError."""
        return int.from_bytes(self.read(pointer, offset, 8), "little")

    def number(self, pointer: int, offset: int) -> int:
        """An unsigned field of 32 bits. Raises OSError or ValueError."""
        return int.from_bytes(self.read(pointer, offset, 4), "little")

    def type_of(self, pointer: int) -> int:
        """The instance type of an object. Raises OSError or ValueError."""
        map_ = self.word(pointer, 0)
        return int.from_bytes(self.read(map_, self.constants.map_type, 2), "little")

    def is_text(self, type_: int) -> bool:
        """Whether an instance type is that of a text."""
        return type_ & self.constants.not_string_mask == 0

    def length(self, pointer: int) -> int:
        """How many characters a text has. Raises OSError or ValueError."""
        return self.number(pointer, self.constants.string_length)

    def text(self, pointer: int, characters_max: int) -> str:
        """The beginning of a text. Raises OSError or ValueError."""
        data, width = self.characters(pointer, 0, characters_max)
        return data.decode("latin-1" if width == 1 else "utf-16-le", errors="replace")

    def characters(self, pointer: int, begin: int, count_max: int) -> tuple[bytes, int]:
        """Characters of a text from `begin` on, and how many bytes each of them has: 1 or 2."""
        return self._piece(pointer, begin, count_max, _DEPTH_MAX, iter(range(_PIECES_MAX)))

    def _piece(
        self, pointer: int, begin: int, count_max: int, depth: int, pieces: Iterator[int]
    ) -> tuple[bytes, int]:
        constants, type_ = self.constants, self.type_of(pointer)
        if not self.is_text(type_) or depth < 0 or next(pieces, None) is None:
            raise ValueError("not a text, or a text of too many pieces")
        count = max(0, min(self.length(pointer) - begin, count_max))
        width = 1 if type_ & constants.encoding_mask == constants.one_byte_tag else _TWO_BYTES
        kind = type_ & constants.representation_mask
        if kind == constants.sequential_tag:
            chars = constants.one_byte_chars if width == 1 else constants.two_byte_chars
            return self.read(pointer, chars + begin * width, count * width), width
        if kind == constants.external_tag:
            # Behind the resource is the address of its data.
            data = self.word(pointer, constants.external_resource + 8)
            return self._memory.read(data + begin * width, count * width), width
        if kind == constants.thin_tag:
            return self._piece(self.word(pointer, constants.thin_actual), begin, count, depth - 1, pieces)
        if kind == constants.cons_tag:
            return self._joined(pointer, begin, count, depth - 1, pieces)
        if kind == constants.sliced_tag:
            begin += self.word(pointer, constants.sliced_offset) >> SMI_SHIFT
            return self._piece(self.word(pointer, constants.sliced_parent), begin, count, depth - 1, pieces)
        raise ValueError(f"a text of kind {kind}")

    def _joined(
        self, pointer: int, begin: int, count: int, depth: int, pieces: Iterator[int]
    ) -> tuple[bytes, int]:
        first, second = (
            self.word(pointer, place) for place in (self.constants.cons_first, self.constants.cons_second)
        )
        first_length = self.length(first)
        if begin >= first_length:
            return self._piece(second, begin - first_length, count, depth, pieces)
        data, width = self._piece(first, begin, count, depth, pieces)
        rest = count - len(data) // width
        if rest <= 0:
            return data, width
        more, more_width = self._piece(second, 0, rest, depth, pieces)
        if more_width == width:
            return data + more, width
        return _widened(data, width) + _widened(more, more_width), _TWO_BYTES


def _widened(data: bytes, width: int) -> bytes:
    return data if width == _TWO_BYTES else struct.pack(f"<{len(data)}H", *data)
