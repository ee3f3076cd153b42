"""From DWARF's state of a frame to a rule of ours, on x86-64.

Rules:
- An undefined return address is the end of the stack, whatever else the state says.
- The return address must be at CFA - 8 and the caller's rsp must be the CFA: that is what CALL leaves, and
  what the walker takes for granted. Code that returns otherwise (longjmp, vfork, split stacks) is STOP.
- A CFA in any register but rsp and rbp is STOP: prologues and hand-written assembly have it between
  calls, where no caller's frame can stand.
- A caller's rbp that was moved into another register is UNDEFINED: the walk may continue without it.
"""

from __future__ import annotations

from bpfleakd.unwind.expressions import LazyPlt, RegisterContents, RegisterOffset, recognise
from bpfleakd.unwind.frame_state import UNSPECIFIED, FrameState, How, RegisterRule
from bpfleakd.unwind.registers import RBP, RSP
from bpfleakd.unwind.rules import END, STOP, CfaKind, RbpKind, UnwindRule

_RETURN_ADDRESS = (How.OFFSET, -8)
_RSP_IS_CFA = (UNSPECIFIED, (How.VAL_OFFSET, 0))

_OFFSET_KIND = {RSP: CfaKind.RSP, RBP: CfaKind.RBP}
_CONTENTS_KIND = {RSP: CfaKind.DEREF_RSP, RBP: CfaKind.DEREF_RBP}


def rule_of(state: FrameState, is_signal_frame: bool) -> UnwindRule:
    """Return the rule for a state; `is_signal_frame` is the 'S' of the CIE's augmentation."""
    if state.rip[0] is How.UNDEFINED:
        return END
    if is_signal_frame:
        rule = _signal_rule(state)
    elif state.rip != _RETURN_ADDRESS or state.rsp not in _RSP_IS_CFA:
        return STOP
    else:
        rule = UnwindRule(*_cfa_of(state), *_rbp_of(state.rbp))
    return rule if _fits(rule) else STOP


def _cfa_of(state: FrameState) -> tuple[CfaKind, int, int]:
    cfa = RegisterOffset(state.cfa_register, state.cfa_offset)
    match cfa if state.cfa_expression is None else recognise(state.cfa_expression):
        case RegisterOffset(register, offset) if register in _OFFSET_KIND:
            return _OFFSET_KIND[register], offset, 0
        case RegisterContents(register, offset, addend) if register in _CONTENTS_KIND:
            return _CONTENTS_KIND[register], offset, addend
        case LazyPlt(offset, threshold):
            return CfaKind.PLT, offset, threshold
        case _:
            return CfaKind.STOP, 0, 0


def _rbp_of(rbp: RegisterRule) -> tuple[RbpKind, int]:
    match rbp:
        case ((How.UNSPECIFIED | How.SAME_VALUE), _):
            return RbpKind.SAME, 0
        case How.OFFSET, int(offset):
            return RbpKind.AT_CFA, offset
        case How.EXPRESSION, bytes(expression):
            match recognise(expression):
                case RegisterOffset(register, offset) if register == RBP:
                    return RbpKind.AT_RBP, offset
    return RbpKind.UNDEFINED, 0


def _signal_rule(state: FrameState) -> UnwindRule:
    # The C library describes its trampoline by where the kernel put the registers, relative to rsp.
    saved = [_saved_at_rsp(rule) for rule in (state.rbp, state.rip)]
    match recognise(state.cfa_expression or b""), saved:
        case RegisterContents(register, rsp_offset, 0), [int(rbp_offset), int(rip_offset)] if register == RSP:
            return UnwindRule(CfaKind.SIGNAL, rsp_offset, rip_offset, RbpKind.AT_RSP, rbp_offset)
    return STOP


def _saved_at_rsp(rule: RegisterRule) -> int | None:
    how, operand = rule
    location = recognise(operand) if isinstance(operand, bytes) and how is How.EXPRESSION else None
    if isinstance(location, RegisterOffset) and location.register == RSP:
        return location.offset
    return None


def _fits(rule: UnwindRule) -> bool:
    offsets = (rule.cfa_offset, rule.cfa_addend, rule.rbp_offset)
    return rule.cfa is not CfaKind.STOP and all(-(1 << 31) <= offset < 1 << 31 for offset in offsets)
