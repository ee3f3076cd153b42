"""Managed frames in a stack: an address, followed by words that identify the function.

bpf/abi_unwind.h MANAGED_OBJECT defines the words; kernel/abi.py mirrors it, and a test compares these with
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from bpfleakd.model.code.stack_word import hash_word

_OBJECT, _POSITION = 2, 3
_KIND_SHIFT = 61
_ADDRESS_BITS, CHECK_BITS = 47, 14


class ManagedFrame(Struct, frozen=True):
    """A frame of code that a runtime has generated. `address` is the return address of the call.

    `object_address` is the address of the object that identifies the function, with tags, and `check` has
    CHECK_BITS of a hash over its identity. `position` is the place in the function, None if it was not
    recorded.
    """

    address: int
    object_address: int
    check: int
    position: int | None = None

    @property
    def place(self) -> int:
        """A number for this place in this function: interpreted functions share addresses."""
        return (self.object_address ^ self.address << 14 ^ (self.position or 0)) & (1 << _KIND_SHIFT) - 1


def check_of(number: int) -> int:
    """ManagedFrame.check of an object that has these 4 bytes (object_of of bpf/managed.h)."""
    return hash_word(0, number) >> 64 - CHECK_BITS


def is_address(word: int) -> bool:
    """Whether a word of a stack is an address in the process: others have one of the highest bits set."""
    return not word >> _KIND_SHIFT + 1


def managed_frames(words: Sequence[int]) -> Iterator[tuple[int, ManagedFrame]]:
    """Yield the managed frames of a stack, with the number of the word that is the address of each."""
    for index, (address, word) in enumerate(pairwise(words)):
        if word >> _KIND_SHIFT == _OBJECT and is_address(address):
            after = words[index + 2] if index + 2 < len(words) else 0
            has_position = after >> _KIND_SHIFT == _POSITION
            yield (
                index,
                ManagedFrame(
                    address,
                    word & (1 << _ADDRESS_BITS) - 1,
                    word >> _ADDRESS_BITS & (1 << CHECK_BITS) - 1,
                    after & (1 << _KIND_SHIFT) - 1 if has_position else None,
                ),
            )


def frame_places(words: Sequence[int]) -> list[int]:
    """A distinct number for each frame of a stack: the address, or ManagedFrame.place."""
    managed = dict(managed_frames(words))
    return [
        managed[index].place if index in managed else word
        for index, word in enumerate(words)
        if word >> _KIND_SHIFT not in (_OBJECT, _POSITION)
    ]
