"""Static probes of samplers inside programs: finds those of a file, and verifies them.

A note may contain anything, and a breakpoint in the middle of an instruction ends the process that reaches
it. So a probe is accepted only if the file's own code confirms it: it is a `nop` (the placeholder for a
probe), reached by decoding instructions from a function's beginning according to the call frame information
or a symbol of that file. It must not have 5 bytes (prologue.py). Its semaphore, which the kernel increments
in the memory of the process, must be in writable data of the file.

libbpfleak.so has further probes under its own provider (inside/probes.h). Those of the same names announce
the same events, so a tracer needs only one of each. The others are never hit: their semaphores make the
sampling coarser.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.static_probes import StaticProbe, static_probes
from bpfleakd.kernel.probes.operands import packed_operands
from bpfleakd.kernel.probes.prologue import is_replaced

PROVIDER = "otel_memory"
PLACES_PROVIDER = "bpfleak"
COARSER = "coarser"
ARGUMENT_COUNTS = {"alloc": 3, "free": 1, COARSER: 1}
"""The probes that bpfleakd uses, with the number of their arguments."""

_NAMES = {PROVIDER: ("alloc", "free"), PLACES_PROVIDER: ("alloc", "free", COARSER)}
_LONGEST_FUNCTION_BYTES = 64 * 1024
_LONGEST_INSTRUCTION_BYTES = 15
_NOP = b"\x90"

Disassemble: TypeAlias = Callable[[bytes, int], Iterable[tuple[int, str]]]
"""From machine code and its address to the address and mnemonic of each instruction."""


class AnnouncedProbe(Struct, frozen=True):
    """A probe by its full name (PROVIDER:NAME) and address; offsets are those of the file.

    `semaphore` is 0 if it has none.
    `refusal`: why it cannot be probed.
    """

    name: str
    vaddr: int
    offset: int
    semaphore: int
    arguments: str
    emulated: bool
    refusal: str = ""


def announced_probes(
    image: ElfImage, starts: Sequence[int], disassemble: Disassemble
) -> Iterator[AnnouncedProbe]:
    """The probes of samplers in a file whose functions begin at `starts` (vaddr, sorted). Raises `BadElf`."""
    for provider, names in _NAMES.items():
        for probe in static_probes(image, provider):
            if probe.name in names:
                index = bisect_right(starts, probe.vaddr) - 1
                start = starts[index] if index >= 0 else None
                is_nop = _is_nop(image, start, probe.vaddr, disassemble)
                yield _checked(image, provider, probe, is_nop=is_nop)


def _checked(image: ElfImage, provider: str, probe: StaticProbe, *, is_nop: bool) -> AnnouncedProbe:
    instruction = image.read(probe.vaddr, 1)
    semaphore = image.file_offset_of(probe.semaphore_vaddr) if probe.semaphore_vaddr else 0
    return AnnouncedProbe(
        name=f"{provider}:{probe.name}",
        vaddr=probe.vaddr,
        offset=image.file_offset_of(probe.vaddr) or 0,
        semaphore=semaphore or 0,
        arguments=probe.arguments,
        emulated=instruction == _NOP,
        refusal=_refusal(image, probe, is_nop=is_nop),
    )


def _refusal(image: ElfImage, probe: StaticProbe, *, is_nop: bool) -> str:
    vaddr, semaphore = probe.vaddr, probe.semaphore_vaddr
    if not any(s.executable and 0 <= vaddr - s.vaddr < s.file_size_bytes for s in image.segments):
        return f"{vaddr:#x} is not in an executable segment"
    if is_nop and is_replaced(image.read(vaddr, _LONGEST_INSTRUCTION_BYTES)):
        return f"{vaddr:#x} is a nop of 5 bytes, where Linux 6.18 places a call that ends children"
    if not is_nop:
        return f"{vaddr:#x} is not a nop between two instructions of a function"
    if semaphore and (semaphore & 1 or not _is_data(image, semaphore)):
        return f"the semaphore {semaphore:#x} is not in data that is written to"
    try:
        packed_operands(probe.arguments, ARGUMENT_COUNTS[probe.name])
    except ValueError as error:
        return str(error)
    return ""


def _is_data(image: ElfImage, vaddr: int) -> bool:
    return any(
        s.writable and not s.executable and 0 <= vaddr - s.vaddr <= s.file_size_bytes - 2
        for s in image.segments
    )


def _is_nop(image: ElfImage, start: int | None, vaddr: int, disassemble: Disassemble) -> bool:
    """Whether decoding the instructions of a function reaches a nop at `vaddr`."""
    if start is None or vaddr - start >= _LONGEST_FUNCTION_BYTES:
        return False
    code = image.read(start, vaddr - start + _LONGEST_INSTRUCTION_BYTES)
    for address, mnemonic in disassemble(code, start):
        if address >= vaddr:
            return address == vaddr and mnemonic == "nop"
    return False
