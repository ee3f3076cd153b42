"""Addresses in recorded stacks: above the address is the number of the code that was there (bpf/code.h)."""

from __future__ import annotations

_ADDRESS_BITS = 47


def address_of(word: int) -> int:
    """The address in a word of a stack that is one."""
    return word & (1 << _ADDRESS_BITS) - 1


def code_number(word: int) -> int:
    """LoadedCode.number of the code there; 0: the first that was there."""
    return word >> _ADDRESS_BITS
