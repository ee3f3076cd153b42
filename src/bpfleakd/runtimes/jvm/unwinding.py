"""Unwind tables for the code cache of a JVM.

Frames on x86-64, as HotSpot's compilers and stubs create them (src/hotspot/cpu/x86/frame_x86.hpp):
- A blob states the size of its frames, which are complete at every call: the caller's rsp is rsp + size.
  Below that are the return address and the caller's rbp.
- A frame of the interpreter has a frame pointer. The caller's rbp is at rbp, the return address above it, the
  caller's rsp (which the arguments moved) at rbp - 8, the method at rbp - 24, the cache of its class'
  constants at rbp - 48, the instruction at rbp - 64.
- All other code (stubs by which Java is entered) has an ordinary frame pointer.
- Unknown code ends the walk: compiled methods use rbp for anything, and a short stack is better than a wrong
  one.
"""

from __future__ import annotations

import numpy as np

from bpfleakd.runtimes.jvm.code_cache import CodeHeap, CodeSnapshot
from bpfleakd.unwind.assemble import Functions, page_rows, rows_of, without_overlaps
from bpfleakd.unwind.managed_code import managed_rule
from bpfleakd.unwind.rules import (
    GAP_NUMBER,
    RESERVED_RULES,
    STOP_NUMBER,
    CfaKind,
    RbpKind,
    UnwindRule,
)
from bpfleakd.unwind.table import PAGE_BYTES, UnwindTable

_WORD_BYTES = 8
_SAVED_RBP = -16
_METHOD, _CONSTANTS_CACHE = -24, -48
_INSTRUCTION_SLOT, _CALLER_SLOT = -8, -1
_ROWS_MAX = 1 << 20
_FRAME_SIZES_MAX = 4_096


# How to unwind a frame of the interpreter.
INTERPRETER_RULE = managed_rule(
    _METHOD, check_offset=_CONSTANTS_CACHE, position_slot=_INSTRUCTION_SLOT, caller_slot=_CALLER_SLOT
)
_BY_RBP = UnwindRule(CfaKind.RBP, 2 * _WORD_BYTES, rbp=RbpKind.AT_CFA, rbp_offset=_SAVED_RBP)


def code_tables(code: CodeSnapshot) -> list[UnwindTable]:
    """The tables of all code, by the process' own addresses."""
    tables = (_table(code, heap, INTERPRETER_RULE) for heap in code.heaps)
    return [table for table in tables if table is not None]


def compiled_rule(frame_words: int) -> UnwindRule:
    """How to unwind a frame of this size."""
    return UnwindRule(CfaKind.RSP, frame_words * _WORD_BYTES, rbp=RbpKind.AT_CFA, rbp_offset=_SAVED_RBP)


def _table(code: CodeSnapshot, heap: CodeHeap, interpreter: UnwindRule) -> UnwindTable | None:
    is_here = (code.starts >= np.uint64(heap.start)) & (code.ends <= np.uint64(heap.end))
    first, last = code.interpreter
    # Its blob surrounds it.
    is_here &= (code.starts >= np.uint64(last)) | (code.ends <= np.uint64(first))
    starts, ends = code.starts[is_here], code.ends[is_here]
    # One program per size: its one row.
    distinct, programs = np.unique(code.frame_words[is_here], return_inverse=True)
    rules = [
        compiled_rule(int(words)) if words else _BY_RBP for words in distinct[:_FRAME_SIZES_MAX].tolist()
    ]
    is_kept = programs < len(rules)
    starts, ends, programs = starts[is_kept], ends[is_kept], programs[is_kept]
    if heap.start <= first < last <= heap.end:
        starts, ends = np.append(starts, np.uint64(first)), np.append(ends, np.uint64(last))
        programs = np.append(programs, len(rules))
        rules.append(interpreter)
    if not len(starts):
        return None
    origin = np.uint64(heap.start)
    functions = Functions(
        (starts - origin).astype(np.uint32), (ends - origin).astype(np.uint32), programs.astype(np.uint32)
    )
    functions = without_overlaps(functions)
    addresses, numbers, count = rows_of(functions, _OneRow(len(rules)), _ROWS_MAX)
    numbers[numbers == GAP_NUMBER] = STOP_NUMBER
    addresses, numbers = np.insert(addresses, 0, 0), np.insert(numbers, 0, STOP_NUMBER)
    rows, page_index = page_rows(addresses, numbers, (heap.end - heap.start) // PAGE_BYTES)
    rows.flags.writeable = page_index.flags.writeable = False
    return UnwindTable(None, heap.start, rows, page_index, (*RESERVED_RULES, *rules), count)


class _OneRow:
    """Programs of one row each, with a separate rule."""

    def __init__(self, count: int) -> None:
        self._count = count

    def first_rows(self) -> np.ndarray:
        return np.arange(self._count + 1, dtype=np.uint32)

    def row_offsets(self) -> np.ndarray:
        return np.zeros(self._count, np.uint32)

    def row_rules(self) -> np.ndarray:
        return np.arange(self._count, dtype=np.uint32) + np.uint32(len(RESERVED_RULES))
