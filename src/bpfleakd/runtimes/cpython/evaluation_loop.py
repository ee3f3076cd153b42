"""Finds the native code of the evaluation loop: `_PyEval_EvalFrameDefault` and its cold part.

The compiler may move the rarely used half of a function to a separate part elsewhere
(`_PyEval_EvalFrameDefault.cold`), which a stripped file does not name. bpfleakd finds it by the jumps from
the named half into the middle of code with another FDE: calls lead to the start of a function, and only jumps
within one lead elsewhere.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.named_symbols import find_symbols

_LOOP = "_PyEval_EvalFrameDefault"
_SIZE_MAX_BYTES = 4 << 20
_RANGES_MAX = 4
# Distinct jump targets in one FDE. Other bytes rarely look like a jump into the text.
_TARGETS_MIN = 2
_CANDIDATES_MAX = 16
# `and $-32, %rsp` or any other power of 2, as one byte or four. The stack is a multiple of 16 anyway.
_ALIGNS_STACK = re.compile(rb"\x48\x83\xe4[^\xf0]|\x48\x81\xe4", re.DOTALL)

# Version 1; pcrel sdata4, udata4, datarel sdata4; then the address of .eh_frame and the number of pairs.
_HEADER = struct.Struct("<4BiI")
_ENCODINGS = [1, 0x1B, 0x03, 0x3B]
_PAIR_BYTES = 8


def code_ranges(image: ElfImage) -> tuple[tuple[int, int], ...]:
    """The (start, end) of the evaluation loop as virtual addresses of the file; empty without a loop.

    Raises `BadElf`.
    """
    symbol = find_symbols(image, [_LOOP]).get(_LOOP)
    if symbol is None or not 0 < symbol.size_bytes <= _SIZE_MAX_BYTES:
        return ()
    start, end = symbol.vaddr, symbol.vaddr + symbol.size_bytes
    targets = _jump_targets(image.read(start, symbol.size_bytes), start)
    targets = np.unique(targets[(targets < start) | (targets >= end)])
    starts, fdes = _functions(image)
    if not len(starts):
        return ((start, end),)
    indexes = np.searchsorted(starts, targets, side="right") - 1
    inside = (indexes >= 0) & (targets > starts[indexes])
    hits = Counter(indexes[inside].tolist()).most_common(_CANDIDATES_MAX)
    cold = []
    for index in (index for index, count in hits if count >= _TARGETS_MIN):
        low, high = int(starts[index]), int(starts[index]) + _range_bytes(image, int(fdes[index]))
        # Otherwise the last function before a gap would get all jumps into the gap.
        if np.count_nonzero((targets > low) & (targets < high)) >= _TARGETS_MIN:
            cold.append((low, high))
    return ((start, end), *cold[: _RANGES_MAX - 1])


def has_fixed_frames(image: ElfImage, loop: Sequence[tuple[int, int]]) -> bool:
    """Whether local variables of the loop lie at the same distance from the end of its frame in all calls.

    They do unless the function aligns its stack. Bytes that only look like this cost speed. `loop` is what
    `code_ranges` returns. Raises `BadElf`.
    """
    return not any(_ALIGNS_STACK.search(image.read(start, end - start)) for start, end in loop)


def _functions(image: ElfImage) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The beginnings of functions, ascending, and the places of their FDEs.

    From the table in .eh_frame_hdr (Linux Standard Base 5.0, 10.6.2), in the encoding that linkers write.
    """
    nothing = np.empty(0, np.int64)
    section = image.section(".eh_frame_hdr")
    if section is None or len(section.data) < _HEADER.size:
        return nothing, nothing
    *encodings, _, count = _HEADER.unpack_from(section.data)
    if encodings != _ENCODINGS:
        return nothing, nothing
    count = min(count, (len(section.data) - _HEADER.size) // _PAIR_BYTES)
    pairs = np.frombuffer(section.data, "<i4", 2 * count, _HEADER.size).astype(np.int64) + section.vaddr
    return pairs[0::2], pairs[1::2]


def _range_bytes(image: ElfImage, fde_vaddr: int) -> int:
    """The length of an FDE's function: its fourth word, in the encoding that linkers write."""
    raw = image.read(fde_vaddr + 12, 4)
    return int.from_bytes(raw, "little") if len(raw) == 4 else 0


def _jump_targets(code: bytes, vaddr: int) -> NDArray[np.int64]:
    """The targets of bytes that could be `jmp rel32` (E9) or `jcc rel32` (0F 80 to 0F 8F)."""
    data = np.frombuffer(code, np.uint8)
    if len(data) < 8:
        return np.empty(0, np.int64)
    at = np.arange(len(data) - 6)
    jumps = at[data[at] == 0xE9]
    conditional = at[(data[at] == 0x0F) & (data[at + 1] & 0xF0 == 0x80)] + 1
    after = np.concatenate([jumps, conditional]) + 1
    words = np.ndarray(len(data) - 3, "<i4", code, strides=(1,))
    targets: NDArray[np.int64] = vaddr + after + 4 + words[after].astype(np.int64)
    return targets
