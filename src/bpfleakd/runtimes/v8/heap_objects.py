"""Objects of V8's heap in another process: tags, types and texts.

All of it is untrusted, and a collector may move it while it is read. So lengths and depths are bounded, and
the type in an object's map is checked. OSError and ValueError mean that there is no such object.
"""

from __future__ import annotations

import struct

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.v8.constants import Constants

__all__ = ["SMI_SHIFT", "HeapObjects", "is_object", "is_small_integer"]

SMI_SHIFT = 32
_OBJECT_TAG, _TAG_MASK = 1, 3
# Of a text that is put together or cut out of others.
_DEPTH_MAX = 8
_TWO_BYTES = 2


def is_object(word: int) -> bool:
    """Whether a word is a strong pointer to an object."""
    return word & _TAG_MASK == _OBJECT_TAG


def is_small_integer(word: int) -> bool:
    """Whether a word is an integer of 32 bits, which V8 keeps in its upper half."""
    return word & (1 << SMI_SHIFT) - 1 == 0


class HeapObjects:
    """Reads objects by their tagged pointers."""

    def __init__(self, memory: RemoteMemory, constants: Constants) -> None:
        self.constants = constants
        self._memory = memory

    def read(self, pointer: int, offset: int, size_bytes: int) -> bytes:
        """Bytes of an object. Raises OSError or ValueError."""
        if not is_object(pointer):
            raise ValueError(f"{pointer:#x} is no pointer to an object")
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
        data, width = self.characters(pointer, characters_max)
        return data.decode("latin-1" if width == 1 else "utf-16-le", errors="replace")

    def characters(self, pointer: int, count_max: int, depth: int = 0) -> tuple[bytes, int]:
        """The first characters of a text, and how many bytes each of them has: 1 or 2."""
        constants, type_ = self.constants, self.type_of(pointer)
        if not self.is_text(type_) or depth > _DEPTH_MAX:
            raise ValueError("this is no text, or one of too many pieces")
        count = min(self.length(pointer), count_max)
        width = 1 if type_ & constants.encoding_mask == constants.one_byte_tag else _TWO_BYTES
        kind = type_ & constants.representation_mask
        if kind == constants.sequential_tag:
            chars = constants.one_byte_chars if width == 1 else constants.two_byte_chars
            return self.read(pointer, chars, count * width), width
        if kind == constants.external_tag:
            # Behind the resource is the address of its data.
            return self._memory.read(
                self.word(pointer, constants.external_resource + 8), count * width
            ), width
        if kind == constants.thin_tag:
            return self.characters(self.word(pointer, constants.thin_actual), count, depth + 1)
        if kind == constants.cons_tag:
            return self._joined(pointer, count, depth)
        if kind == constants.sliced_tag:
            begin = self.word(pointer, constants.sliced_offset) >> SMI_SHIFT
            data, width = self.characters(
                self.word(pointer, constants.sliced_parent), begin + count, depth + 1
            )
            return data[begin * width :], width
        raise ValueError(f"a text of kind {kind}")

    def _joined(self, pointer: int, count: int, depth: int) -> tuple[bytes, int]:
        first, first_width = self.characters(self.word(pointer, self.constants.cons_first), count, depth + 1)
        rest = count - len(first) // first_width
        if rest <= 0:
            return first, first_width
        second, width = self.characters(self.word(pointer, self.constants.cons_second), rest, depth + 1)
        if width == first_width:
            return first + second, width
        return _widened(first, first_width) + _widened(second, width), _TWO_BYTES


def _widened(data: bytes, width: int) -> bytes:
    return data if width == _TWO_BYTES else struct.pack(f"<{len(data)}H", *data)
