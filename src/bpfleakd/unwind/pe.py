"""Unwind tables of PE files: the code that .NET compiled ahead of time (ReadyToRun).

Most of that code has no frame pointer. The file's exception directory has its unwind information, in the
format of 64-bit Windows, also on Linux: for each function its range and the address of an UNWIND_INFO with
the instructions of its prologue, the last one first.

https://learn.microsoft.com/cpp/build/exception-handling-x64
https://github.com/dotnet/runtime/blob/main/src/coreclr/inc/win64unwind.h (UWOP_SET_FPREG_LARGE)

Rules:
- The input may be hostile: what makes no sense is left out and counted, and everything is bounded.
- Code between functions (stubs that jump) is a gap: the walker follows rbp there.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from bpfleakd.errors import BadElf
from bpfleakd.unwind.assemble import Functions, page_rows, rows_of, without_overlaps
from bpfleakd.unwind.malformed import MalformedCfi, SkipReason
from bpfleakd.unwind.programs import RULES_PER_FILE_MAX
from bpfleakd.unwind.rules import RESERVED_RULES, STOP, STOP_NUMBER, CfaKind, RbpKind, UnwindRule
from bpfleakd.unwind.table import PAGE_BITS, PAGE_BYTES, TEXT_LIMIT_BYTES, UnwindTable

FUNCTIONS_MAX = 1_000_000
_SECTIONS_MAX = 96
_CHAINED_MAX = 8
# IMAGE_FILE_MACHINE_AMD64, and .NET's variant for Linux (XORed with its operating system).
_MACHINES = (0x8664, 0x8664 ^ 0x7B79)
_PE32_PLUS = 0x20B
_EXCEPTION_DIRECTORY = 3
_EXECUTE = 0x2000_0000
_CHAININFO = 4
_RBP = 5

# Instructions of a prologue, and how many slots of 2 bytes each takes.
(
    _PUSH_NONVOL,
    _ALLOC_LARGE,
    _ALLOC_SMALL,
    _SET_FPREG,
    _SAVE_NONVOL,
    _SAVE_NONVOL_FAR,
) = range(6)
_SET_FPREG_LARGE = 11
_SLOTS = {0: 1, 2: 1, 3: 1, 4: 2, 5: 3, 6: 1, 7: 3, 8: 2, 9: 3, 10: 1, 11: 3}


class _Section(Struct, frozen=True):
    vaddr: int
    size_bytes: int
    file_offset: int
    executable: bool


class PeSections(Struct, frozen=True):
    """The input of a table: the file, and `functions`: start, end, UNWIND_INFO of each (uint32)."""

    data: bytes
    sections: tuple[_Section, ...]
    functions: np.ndarray

    @property
    def segments(self) -> tuple[tuple[int, int, int], ...]:
        """The executable parts: file offset, vaddr, bytes."""
        return tuple((s.file_offset, s.vaddr, s.size_bytes) for s in self.sections if s.executable)

    @property
    def digest(self) -> str:
        """Identifies all of the input."""
        return hashlib.blake2b(self.data, digest_size=16).hexdigest()

    def at(self, vaddr: int) -> int:
        """The file offset of an address. Raises MalformedCfi outside all sections."""
        for section in self.sections:
            if section.vaddr <= vaddr < section.vaddr + section.size_bytes:
                return section.file_offset + vaddr - section.vaddr
        raise MalformedCfi(SkipReason.OUTSIDE_TEXT)


def is_pe(data: bytes) -> bool:
    """Whether a file that begins like this is a PE file."""
    return data[:2] == b"MZ"


def pe_sections_of(data: bytes) -> PeSections:
    """Read the headers of a file. Raises `BadElf` if it has no unwind information."""
    try:
        return _sections_of(data)
    except struct.error as error:
        raise BadElf(f"a PE file that is cut: {error}") from error


def _sections_of(data: bytes) -> PeSections:
    (header,) = struct.unpack_from("<I", data, 0x3C)
    signature, machine, count = struct.unpack_from("<4sHH", data, header)
    (optional_bytes,) = struct.unpack_from("<H", data, header + 20)
    optional = header + 24
    if signature != b"PE\0\0" or machine not in _MACHINES or count > _SECTIONS_MAX:
        raise BadElf(f"no PE file for x86-64 (machine {machine:#x})")
    (magic,) = struct.unpack_from("<H", data, optional)
    (directories,) = struct.unpack_from("<I", data, optional + 108)
    if magic != _PE32_PLUS or directories <= _EXCEPTION_DIRECTORY:
        raise BadElf("a PE file without an exception directory")
    vaddr, size_bytes = struct.unpack_from("<II", data, optional + 112 + 8 * _EXCEPTION_DIRECTORY)
    sections = []
    for number in range(count):
        at = optional + optional_bytes + 40 * number
        virtual_bytes, start, raw_bytes, offset = struct.unpack_from("<IIII", data, at + 8)
        (characteristics,) = struct.unpack_from("<I", data, at + 36)
        size = min(virtual_bytes, raw_bytes)
        sections.append(_Section(start, size, offset, bool(characteristics & _EXECUTE)))
    found = PeSections(data, tuple(sections), np.zeros((0, 3), np.uint32))
    functions = min(size_bytes // 12, FUNCTIONS_MAX)
    if not functions or not any(section.executable for section in sections):
        raise BadElf("a PE file without code that was compiled ahead of time")
    try:
        offset = found.at(vaddr)
    except MalformedCfi as error:
        raise BadElf("a PE file whose exception directory is in no section") from error
    if offset + 12 * functions > len(data):
        raise BadElf("a PE file whose exception directory is cut")
    table = np.frombuffer(data, np.uint32, 3 * functions, offset).reshape(functions, 3)
    return PeSections(data, tuple(sections), table)


def build_pe_table(image: PeSections, max_rows: int) -> UnwindTable:
    """Build a table of at most so many rows. Raises `BadElf` where not a single function is usable."""
    text = [section for section in image.sections if section.executable]
    text_start = min(section.vaddr for section in text) & -PAGE_BYTES
    text_end = max(section.vaddr + section.size_bytes for section in text)
    page_count = (text_end - text_start + PAGE_BYTES - 1) >> PAGE_BITS
    if not 0 < page_count <= TEXT_LIMIT_BYTES >> PAGE_BITS:
        raise BadElf(f"text from {text_start:#x} to {text_end:#x} is not plausible")
    skipped: Counter[SkipReason] = Counter()
    programs = _Programs(image)
    starts, ends, numbers = array("I"), array("I"), array("I")
    for start, end, info in image.functions.tolist():
        if not text_start <= start < end <= text_end:
            skipped[SkipReason.OUTSIDE_TEXT] += 1
            continue
        starts.append(start - text_start)
        ends.append(end - text_start)
        numbers.append(programs.number_of(info))
    found = Functions(*(np.frombuffer(column, np.uint32) for column in (starts, ends, numbers)))
    functions = without_overlaps(found)
    skipped[SkipReason.OVERLAP] += len(found) - len(functions)
    addresses, rule_numbers, count = rows_of(functions, programs, max_rows)
    if not count:
        raise BadElf("no usable unwind information")
    skipped[SkipReason.LIMIT] += len(functions) - count
    rows, page_index = page_rows(addresses, rule_numbers, page_count)
    rows.flags.writeable = page_index.flags.writeable = False
    told = {reason: number for reason, number in sorted(skipped.items()) if number}
    return UnwindTable(None, text_start, rows, page_index, programs.rules, count, told)


class _Programs:
    """The different prologues of a file, and the rules they use."""

    def __init__(self, image: PeSections) -> None:
        self._image = image
        self._numbers_by_info: dict[int, int] = {}
        self._rule_numbers = {rule: number for number, rule in enumerate(RESERVED_RULES)}
        self._first = array("I", [0])
        self._offsets = array("I")
        self._rules = array("I")

    @property
    def rules(self) -> tuple[UnwindRule, ...]:
        return tuple(self._rule_numbers)

    def number_of(self, info: int) -> int:
        """The number of the prologue at an address; an invalid one ends the walk."""
        number = self._numbers_by_info.get(info)
        if number is None:
            number = self._numbers_by_info[info] = len(self._first) - 1
            try:
                rows = list(_rows(self._image, info))
            except (MalformedCfi, struct.error, IndexError):
                rows = [(0, STOP)]
            self._add(rows)
        return number

    def first_rows(self) -> np.ndarray:
        return np.frombuffer(self._first, np.uint32)

    def row_offsets(self) -> np.ndarray:
        return np.frombuffer(self._offsets, np.uint32)

    def row_rules(self) -> np.ndarray:
        return np.frombuffer(self._rules, np.uint32)

    def _add(self, rows: list[tuple[int, UnwindRule]]) -> None:
        latest = dict(rows)
        for offset in sorted(latest):
            rule = latest[offset]
            if rule not in self._rule_numbers and len(self._rule_numbers) >= RULES_PER_FILE_MAX:
                number = STOP_NUMBER
            else:
                number = self._rule_numbers.setdefault(rule, len(self._rule_numbers))
            self._offsets.append(offset)
            self._rules.append(number)
        self._first.append(len(self._offsets))


class _Frame(Struct):
    """A frame as its prologue builds it: bytes below the CFA, and where rbp is."""

    depth: int = 8
    rbp_depth: int | None = None
    # How far rbp is below the CFA, if it is the frame's base.
    base_depth: int | None = None

    def rule(self) -> UnwindRule:
        rbp = RbpKind.SAME if self.rbp_depth is None else RbpKind.AT_CFA
        offset = 0 if self.rbp_depth is None else -self.rbp_depth
        if self.base_depth is not None:
            return UnwindRule(CfaKind.RBP, self.base_depth, 0, rbp, offset)
        return UnwindRule(CfaKind.RSP, self.depth, 0, rbp, offset)


def _rows(image: PeSections, info: int) -> Iterator[tuple[int, UnwindRule]]:
    """Offset from the function's start and rule, in ascending order."""
    frame = _Frame()
    chain = [info]
    while parent := _parent(image, chain[-1]):
        chain.append(parent)
        if len(chain) > _CHAINED_MAX:
            raise MalformedCfi(SkipReason.LIMIT)
    # The part that a function shares with an earlier one was done there.
    for one in reversed(chain[1:]):
        for _offset in _run(image, one, frame):
            pass
    yield 0, frame.rule()
    for offset in _run(image, info, frame):
        yield offset, frame.rule()


def _parent(image: PeSections, info: int) -> int:
    at = image.at(info)
    flags, count = image.data[at] >> 3, image.data[at + 2]
    if not flags & _CHAININFO:
        return 0
    (parent,) = struct.unpack_from("<I", image.data, at + 4 + 2 * (count + count % 2) + 8)
    return int(parent)


def _run(image: PeSections, info: int, frame: _Frame) -> Iterator[int]:
    """Execute a prologue on a frame; yields the offset after each instruction."""
    at = image.at(info)
    data = image.data
    version, count, base = data[at] & 7, data[at + 2], data[at + 3]
    if version not in (1, 2) or info % 2:
        raise MalformedCfi(SkipReason.BAD_CIE)
    codes = list(_codes(data[at + 4 : at + 4 + 2 * count]))
    # The registers are saved relative to rsp as the whole prologue leaves it.
    total = frame.depth + sum(_grown(code, info_bits, operand) for _o, code, info_bits, operand in codes)
    for offset, code, register, operand in reversed(codes):
        frame.depth += _grown(code, register, operand)
        if code == _PUSH_NONVOL and register == _RBP:
            frame.rbp_depth = frame.depth
        elif code in (_SAVE_NONVOL, _SAVE_NONVOL_FAR) and register == _RBP:
            frame.rbp_depth = total - (operand * 8 if code == _SAVE_NONVOL else operand)
        elif code in (_SET_FPREG, _SET_FPREG_LARGE):
            if base & 15 != _RBP:
                raise MalformedCfi(SkipReason.BAD_INSTRUCTION)
            above = (base >> 4) * 16 if code == _SET_FPREG else operand * 16
            frame.base_depth = frame.depth - above
        yield offset


def _codes(slots: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Prologue offset, instruction, its register or kind, and its operand."""
    at = 0
    while at < len(slots):
        offset, both = slots[at], slots[at + 1]
        code, bits = both & 15, both >> 4
        count = (3 if bits else 2) if code == _ALLOC_LARGE else _SLOTS.get(code, 0)
        if not count or at + 2 * count > len(slots):
            raise MalformedCfi(SkipReason.BAD_INSTRUCTION)
        operand = int.from_bytes(slots[at + 2 : at + 2 * count], "little")
        yield offset, code, bits, operand
        at += 2 * count


def _grown(code: int, bits: int, operand: int) -> int:
    """How many bytes an instruction takes from the stack."""
    if code == _PUSH_NONVOL:
        return 8
    if code == _ALLOC_SMALL:
        return 8 * bits + 8
    if code == _ALLOC_LARGE:
        return operand if bits else operand * 8
    return 0
