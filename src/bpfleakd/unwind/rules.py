"""Unwind rules: how to get from a frame's registers to those of its caller, on x86-64.

Rules of the rules:
- A rule uses only rip, rsp and rbp, the three registers that the walker tracks.
- Except in a signal frame, the caller's rsp is the CFA and the return address is the 8 bytes below it. Other
  call frame information becomes STOP: a short stack is honest, a wrong one is not.
- Rules are values. A number identifies a rule within one table, or within one `RuleSet`, and numbers of the
  two are not exchangeable; 0, 1 and 2 mean GAP, STOP and END in all of them.
- A rule set only grows, so that numbers which the kernel already holds keep their meaning.

Packed for C, 16 bytes, little endian (`cfa_kind` holds a `CfaKind`, `rbp_kind` an `RbpKind`):

    struct unwind_rule {
        __u8  cfa_kind;
        __u8  rbp_kind;
        __s8 position_slot;
        __s8 caller_slot;
        __s32 cfa_offset;
        __s32 cfa_addend;
        __s32 rbp_offset;
    };
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum

from msgspec import Struct

# A row of a table has 20 bits for the number.
RULE_NUMBER_LIMIT = 1 << 20

_LAYOUT = struct.Struct("<BBbbiii")
PACKED_RULE_BYTES = _LAYOUT.size


class CfaKind(IntEnum):
    """How to compute the canonical frame address (CFA). `*` reads 8 bytes of the target."""

    GAP = 0
    """No call frame information here: follow rbp."""
    STOP = 1
    """Information that a rule cannot express: the walk ends."""
    END = 2
    """The return address is undefined: the thread's first function, the stack is whole."""
    RSP = 3
    """rsp + cfa_offset"""
    RBP = 4
    """rbp + cfa_offset"""
    PLT = 5
    """rsp + cfa_offset, and 8 more where (rip & 15) >= cfa_addend: a lazy procedure linkage table"""
    DEREF_RSP = 6
    """*(rsp + cfa_offset) + cfa_addend: the caller's stack pointer was stored on a switched stack"""
    DEREF_RBP = 7
    """*(rbp + cfa_offset) + cfa_addend: a stack realigned for vector registers"""
    SIGNAL = 8
    """A signal frame: rsp = *(rsp + cfa_offset), rip = *(rsp + cfa_addend), and the rip is exact"""
    MANAGED = 9
    """A runtime's own code, which keeps rbp as a frame pointer: see managed_code"""
    MANAGED_TAGGED = 10
    """The same where pointers have the lowest bit set, and functions' frames such a one at rbp - 8"""


class RbpKind(IntEnum):
    """The place of the caller's rbp."""

    SAME = 0
    """In rbp"""
    AT_CFA = 1
    """*(CFA + rbp_offset)"""
    AT_RBP = 2
    """*(rbp + rbp_offset)"""
    AT_RSP = 3
    """*(rsp + rbp_offset), the rsp before the step; in signal frames only"""
    UNDEFINED = 4
    """Lost: the walker continues with 0, which every later use of rbp refuses"""


class UnwindRule(Struct, frozen=True):
    """One step of the walk. Offsets are signed bytes, slots words; those that a kind does not use are 0."""

    cfa: CfaKind
    cfa_offset: int = 0
    cfa_addend: int = 0
    rbp: RbpKind = RbpKind.SAME
    rbp_offset: int = 0
    position_slot: int = 0
    caller_slot: int = 0


GAP = UnwindRule(CfaKind.GAP)
STOP = UnwindRule(CfaKind.STOP)
END = UnwindRule(CfaKind.END)
RESERVED_RULES = (GAP, STOP, END)
GAP_NUMBER, STOP_NUMBER, END_NUMBER = range(len(RESERVED_RULES))


def pack(rules: Iterable[UnwindRule]) -> bytes:
    """Return the rules as an array of `struct unwind_rule`. Offsets must fit into 32 bits."""
    return b"".join(
        _LAYOUT.pack(
            rule.cfa,
            rule.rbp,
            rule.position_slot,
            rule.caller_slot,
            rule.cfa_offset,
            rule.cfa_addend,
            rule.rbp_offset,
        )
        for rule in rules
    )


def unpack(packed: bytes) -> tuple[UnwindRule, ...]:
    """Return what `pack` packed. Raises ValueError for anything else."""
    try:
        return tuple(
            UnwindRule(CfaKind(cfa), cfa_offset, cfa_addend, RbpKind(rbp), rbp_offset, position, caller)
            for cfa, rbp, position, caller, cfa_offset, cfa_addend, rbp_offset in _LAYOUT.iter_unpack(packed)
        )
    except struct.error as error:
        raise ValueError(f"{len(packed)} bytes are not an array of unwind rules") from error


class RuleSet:
    """Rules numbered in the order of their arrival: the contents of the kernel's map of rules.

    `limit` is the size of that map. A rule that no longer fits is numbered as STOP and counted in
    `refused_count`, so that one strange file cannot take the rules of the others away.
    """

    def __init__(self, limit: int = RULE_NUMBER_LIMIT) -> None:
        if not len(RESERVED_RULES) <= limit <= RULE_NUMBER_LIMIT:
            raise ValueError(f"a rule set of {limit} rules: {len(RESERVED_RULES)} to {RULE_NUMBER_LIMIT}")
        self.limit = limit
        self.refused_count = 0
        self._numbers: dict[UnwindRule, int] = {rule: number for number, rule in enumerate(RESERVED_RULES)}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[UnwindRule]:
        """Yield the rules in the order of their numbers."""
        return iter(self._numbers)

    def number_of(self, rule: UnwindRule, reserved: int = 0) -> int:
        """Return the rule's number, giving it one if it is new and leaves `reserved` ones to others."""
        number = self._numbers.get(rule)
        if number is not None:
            return number
        if len(self._numbers) >= self.limit - reserved:
            self.refused_count += 1
            return STOP_NUMBER
        self._numbers[rule] = len(self._numbers)
        return len(self._numbers) - 1

    def packed(self, first: int = 0) -> bytes:
        """Return the rules from number `first` on, packed for C: what is new since `len` was `first`."""
        return pack(list(self._numbers)[first:])
