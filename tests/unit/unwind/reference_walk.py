"""The unwinder in Python: the reference that the BPF program is compared with.

Rules, the same ones in the same order as in BPF:
- Three registers are carried: rip, rsp, rbp. The first rip is exact, and so is the one that a signal
  interrupted: the rule is looked up there. Every other rip is a return address, which may be the first
  byte behind its function: the rule is looked up one byte before.
- Where no file is mapped (JIT code) and in gaps, rbp is taken for a frame pointer: [rbp] is the caller's
  rbp and [rbp + 8] the return address. An rbp below rsp, unaligned, or that leads to nothing readable is
  none, and ends the stack.
- A lost rbp is 0, and a rule that needs it then ends the stack.
- The stack grows down: a CFA that is not above rsp ends the walk. Only signal frames may go elsewhere (an
  alternate signal stack), and the number of frames is bounded anyway.
- A return address of 0 is the bottom, as is an undefined one.

A stack that return probes have changed (their trampoline's address in it) is not put right here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bpfleakd.model.code.stack import RawStack, StackEnd
from bpfleakd.unwind.rules import GAP, CfaKind, RbpKind, UnwindRule
from bpfleakd.unwind.table import UnwindTable

FRAMES_MAX = 256

ReadU64 = Callable[[int], int | None]
"""Returns the 8 bytes at an address of the target, None where they cannot be read."""

FindTable = Callable[[int], tuple[UnwindTable, int] | None]
"""Returns the table of the file mapped at an address, and what to subtract to get the file's vaddr."""

_ADDRESS_MASK = (1 << 64) - 1
_RSP_BASED = (CfaKind.RSP, CfaKind.PLT, CfaKind.DEREF_RSP)
_DEREFERENCED = (CfaKind.DEREF_RSP, CfaKind.DEREF_RBP)


@dataclass(frozen=True, slots=True)
class FrameRegisters:
    """A frame's registers. `is_exact` is False where rip is a return address."""

    rip: int
    rsp: int
    rbp: int
    is_exact: bool = True


def walk(
    registers: FrameRegisters,
    read_u64: ReadU64,
    find: FindTable,
    frames_max: int = FRAMES_MAX,
    at_entry: bool = False,
) -> RawStack:
    """Return the stack of a thread that has these registers.

    `at_entry` says that the first rip is a function's first instruction: should no rule cover it, the
    return address is known to be at rsp nevertheless (a C library without call frame information).
    """
    addresses = [registers.rip]
    rule = _rule_at(registers, find)
    if at_entry and rule == GAP:
        rule = UnwindRule(CfaKind.RSP, 8)
    while True:
        caller = _caller_of(registers, rule, read_u64)
        if isinstance(caller, StackEnd):
            return RawStack(tuple(addresses), caller)
        if caller.rip == 0:
            return RawStack(tuple(addresses), StackEnd.BOTTOM)
        if len(addresses) == frames_max:
            return RawStack(tuple(addresses), StackEnd.DEPTH)
        addresses.append(caller.rip)
        registers, rule = caller, _rule_at(caller, find)


def _rule_at(registers: FrameRegisters, find: FindTable) -> UnwindRule:
    address = registers.rip if registers.is_exact else registers.rip - 1
    found = find(address)
    if found is None:
        return GAP
    table, bias = found
    return table.lookup(address - bias)


def _caller_of(registers: FrameRegisters, rule: UnwindRule, read_u64: ReadU64) -> FrameRegisters | StackEnd:
    match rule.cfa:
        case CfaKind.GAP:
            return _by_frame_pointer(registers, read_u64)
        case CfaKind.END:
            return StackEnd.BOTTOM
        case CfaKind.STOP:
            return StackEnd.NO_RULE
        case CfaKind.SIGNAL:
            return _interrupted(registers, rule, read_u64)
        case _:
            return _by_cfa(registers, rule, read_u64)


def _by_frame_pointer(registers: FrameRegisters, read_u64: ReadU64) -> FrameRegisters | StackEnd:
    rbp = registers.rbp
    if rbp == 0 or rbp < registers.rsp or rbp & 7:
        return StackEnd.FRAME_POINTER_END
    caller_rbp, return_address = read_u64(rbp), read_u64(rbp + 8)
    if caller_rbp is None or return_address is None:
        return StackEnd.FRAME_POINTER_END
    return FrameRegisters(return_address, rbp + 16, caller_rbp, is_exact=False)


def _interrupted(registers: FrameRegisters, rule: UnwindRule, read_u64: ReadU64) -> FrameRegisters | StackEnd:
    rsp = registers.rsp
    rip, caller_rsp, rbp = (
        read_u64(rsp + offset) for offset in (rule.cfa_addend, rule.cfa_offset, rule.rbp_offset)
    )
    if rip is None or caller_rsp is None or rbp is None:
        return StackEnd.READ_FAULT
    return FrameRegisters(rip, caller_rsp, rbp, is_exact=True)


def _by_cfa(registers: FrameRegisters, rule: UnwindRule, read_u64: ReadU64) -> FrameRegisters | StackEnd:
    needs_rbp = rule.cfa not in _RSP_BASED or rule.rbp is RbpKind.AT_RBP
    if needs_rbp and registers.rbp == 0:
        return StackEnd.NO_RULE
    cfa = _cfa_of(registers, rule, read_u64)
    if cfa is None:
        return StackEnd.READ_FAULT
    if cfa <= registers.rsp:
        return StackEnd.NO_RULE
    return_address, rbp = read_u64(cfa - 8), _rbp_of(registers, rule, cfa, read_u64)
    if return_address is None or rbp is None:
        return StackEnd.READ_FAULT
    return FrameRegisters(return_address, cfa, rbp, is_exact=False)


def _cfa_of(registers: FrameRegisters, rule: UnwindRule, read_u64: ReadU64) -> int | None:
    base = registers.rsp if rule.cfa in _RSP_BASED else registers.rbp
    cfa = (base + rule.cfa_offset) & _ADDRESS_MASK
    if rule.cfa in _DEREFERENCED:
        contents = read_u64(cfa)
        return None if contents is None else (contents + rule.cfa_addend) & _ADDRESS_MASK
    if rule.cfa is CfaKind.PLT and registers.rip & 15 >= rule.cfa_addend:
        cfa += 8
    return cfa


def _rbp_of(registers: FrameRegisters, rule: UnwindRule, cfa: int, read_u64: ReadU64) -> int | None:
    match rule.rbp:
        case RbpKind.SAME:
            return registers.rbp
        case RbpKind.AT_CFA:
            return read_u64((cfa + rule.rbp_offset) & _ADDRESS_MASK)
        case RbpKind.AT_RBP:
            return read_u64((registers.rbp + rule.rbp_offset) & _ADDRESS_MASK)
        case _:
            return 0
