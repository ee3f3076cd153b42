"""The hash that BPF computes of stacks and of the identity of objects: hash_frame of bpf/walk.h."""

from __future__ import annotations

_MURMUR = 0xC6A4A7935BD1E995
_WORD_MASK = (1 << 64) - 1


def hash_word(value: int, word: int) -> int:
    """A step of MurmurHash64A: the hash `value` with a word of 64 bits added."""
    word = word * _MURMUR & _WORD_MASK
    word ^= word >> 47
    word = word * _MURMUR & _WORD_MASK
    return (value ^ word) * _MURMUR & _WORD_MASK
