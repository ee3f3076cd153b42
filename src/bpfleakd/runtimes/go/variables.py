"""Finds the runtime's variables in the file of a program.

A stripped program has no symbols of variables. But its functions have names (.gopclntab), and each variable
is the first that a certain small function of the runtime loads, relative to the instruction pointer. The
linker keeps these functions in every program. The result must be among the program's variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.symbols.go.line_table import Function, LineTable
from bpfleakd.symbols.go.module_data import ModuleData

# mov disp32(%rip), %reg of 64 or 32 bits, and lea: opcode, ModRM with mod 00 and r/m 101.
_LOAD_64 = re.compile(rb"[\x48\x4c]\x8b[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](.{4})", re.DOTALL)
_LOAD = re.compile(rb"\x8b[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](.{4})", re.DOTALL)
_ADDRESS = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](.{4})", re.DOTALL)

# Function, its access to the variable, and the index among the variables with that access.
_BUCKETS = "runtime.mProf_FlushLocked", _LOAD_64, 0
_CYCLE = "runtime.mProf_Flush", _LOAD, 0
# The first is mcache0.
_RATE = "runtime.profilealloc", _LOAD_64, 1
_GOROUTINE_COUNT = "runtime.forEachGRace", _LOAD_64, 0
_GOROUTINES = "runtime.forEachGRace", _LOAD_64, 1
_WAIT_REASONS = "runtime.waitReason.String", _ADDRESS, 0

# gcController is one of the few whose address is taken there; the process' memory shows which one (pacer).
_PACER = "runtime.gcinit", _ADDRESS
_PACERS_MAX = 8

_FUNCTION_LIMIT_BYTES = 4096


class Variables(Struct, frozen=True):
    """Addresses of the file.

    `buckets` is mbuckets, `cycle` mProfCycle, `rate` MemProfileRate, `goroutines` and `goroutine_count`
    allgptr and allglen, `wait_reasons` waitReasonStrings (0 where it was not found). One of `pacers` is
    gcController.
    """

    buckets: int
    cycle: int
    rate: int
    goroutines: int
    goroutine_count: int
    wait_reasons: int
    pacers: tuple[int, ...]


def find_variables(image: ElfImage, table: LineTable, module: ModuleData) -> Variables:
    """Find the variables of a program. Raises `BadElf` if one is not found."""
    wanted = (_BUCKETS, _CYCLE, _RATE, _GOROUTINES, _GOROUTINE_COUNT, _WAIT_REASONS)
    functions = table.named({_PACER[0], *(name for name, _pattern, _index in wanted)})

    def find_all(name: str, pattern: re.Pattern[bytes]) -> list[int]:
        function = functions.get(name)
        return list(dict.fromkeys(_targets(image, function, pattern, module))) if function else []

    def find(name: str, pattern: re.Pattern[bytes], index: int) -> int:
        found = find_all(name, pattern)
        return found[index] if index < len(found) else 0

    variables = Variables(
        find(*_BUCKETS),
        find(*_CYCLE),
        find(*_RATE),
        find(*_GOROUTINES),
        find(*_GOROUTINE_COUNT),
        find(*_WAIT_REASONS),
        tuple(find_all(*_PACER)[:_PACERS_MAX]),
    )
    if not (variables.buckets and variables.cycle and variables.rate):
        raise BadElf(f"{image.name}: the variables of its heap profile were not found")
    return variables


def _targets(
    image: ElfImage, function: Function, pattern: re.Pattern[bytes], module: ModuleData
) -> Iterator[int]:
    """The variables that a function uses by instructions of this form, in the order of its code."""
    try:
        code = image.read(function.entry, min(function.end - function.entry, _FUNCTION_LIMIT_BYTES))
    except BadElf:
        return
    for found in pattern.finditer(code):
        target = function.entry + found.end() + int.from_bytes(found[1], "little", signed=True)
        if module.data <= target < module.end_of_data:
            yield target
