"""Code that a runtime has made itself, and how to unwind it: addresses with one rule for all of them.

Frames there have a frame pointer, and in the frame a pointer to the object that says whose frame it is. The
walker records it behind the frame's address (bpf/managed.h); what it is called the runtime says later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bpfleakd.unwind.rules import CfaKind, RbpKind, UnwindRule

__all__ = ["CodeRange", "managed_rule"]


@dataclass(frozen=True, slots=True, order=True)
class CodeRange:
    """Addresses [start, end) of a process, and the rule that holds in all of them.

    `only_gaps`: it holds where the call frame information of the files mapped there says nothing.
    """

    start: int
    end: int
    rule: UnwindRule = field(compare=False)
    only_gaps: bool = False


def managed_rule(
    object_offset: int,
    *,
    inner_offset: int = 0,
    check_offset: int = 0,
    position_slot: int = 0,
    caller_slot: int = 0,
    is_tagged: bool = False,
) -> UnwindRule:
    """The rule of a runtime's own code: rbp is the frame pointer, and rbp + `object_offset` leads to what
    says which function it is.

    With `inner_offset`, it is the object that this one holds there. 4 bytes at `check_offset` in the recorded
    object distinguish it from another that reuses its memory. In words from rbp: the place in the function is
    at `position_slot`, the caller's rsp at `caller_slot`. 0: no place, and rbp + 16.
    """
    kind = CfaKind.MANAGED_TAGGED if is_tagged else CfaKind.MANAGED
    return UnwindRule(
        kind, object_offset, inner_offset, RbpKind.AT_RBP, check_offset, position_slot, caller_slot
    )
