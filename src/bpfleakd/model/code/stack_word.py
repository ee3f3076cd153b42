"""Words of recorded stacks: what is in an address, and the hash that BPF computes of words.

Above the address is the number of the code that was there (bpf/code.h).
"""

from __future__ import annotations

_ADDRESS_BITS = 47

_MURMUR = 0xC6A4A7935BD1E995
_WORD_MASK = (1 << 64) - 1


def address_of(word: int) -> int:
    """The address in a word of a stack that is one."""
    return word & (1 << _ADDRESS_BITS) - 1


def code_number(word: int) -> int:
    """LoadedCode.number of the code there; 0: the first that was there."""
    return word >> _ADDRESS_BITS


def hash_word(value: int, word: int) -> int:
    """A step of MurmurHash64A: the hash `value` with a word of 64 bits added (hash_frame of bpf/walk.h).

    It identifies stacks, and objects of language runtimes.
    """
    word = word * _MURMUR & _WORD_MASK
    word ^= word >> 47
    word = word * _MURMUR & _WORD_MASK
    return (value ^ word) * _MURMUR & _WORD_MASK
