"""Builds the unwind table of a file from its call frame information.

    with ElfImage.open(path) as image:
        table = table_of(image)

Rules:
- Only x86-64. Another machine is `BadElf`, and so is a file without anything to build a table from: the
  walker then follows rbp in it.
- .eh_frame comes first. .debug_frame fills what it leaves uncovered: objects that were compiled without
  .eh_frame still bring the C runtime's start code with them, which has some.
- The input may be hostile. Invalid parts are left out and counted, and never result in a row that
  `table.check` would refuse; time and memory are bounded by the constants here and by `max_rows`.
- The same bytes give the same table, on every machine and in every process.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from msgspec import Struct

from bpfleakd.elf.image import EM_X86_64, ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.unwind.assemble import Functions, page_rows, rows_of, without_overlaps
from bpfleakd.unwind.cfi import CallFrameSection, Fde
from bpfleakd.unwind.eh_frame_hdr import fde_offsets
from bpfleakd.unwind.malformed import MalformedCfi, SkipReason
from bpfleakd.unwind.programs import ProgramSet
from bpfleakd.unwind.table import PAGE_BITS, PAGE_BYTES, TEXT_LIMIT_BYTES, UnwindTable

# libLLVM has 0.95 million rows; a browser has four times as many.
MAX_ROWS = 8 << 20
# libLLVM's different instructions are 1.8 MB. A second's work is 4 MB.
INSTRUCTION_LIMIT_BYTES = 16 << 20


class FrameSections(Struct, frozen=True, dict=True):
    """The input of a table. Missing sections are empty; `text_end` is exclusive."""

    build_id: str | None
    text_start: int
    text_end: int
    eh_frame: bytes | memoryview = b""
    eh_frame_vaddr: int = 0
    eh_frame_hdr: bytes | memoryview = b""
    eh_frame_hdr_vaddr: int = 0
    debug_frame: bytes | memoryview = b""

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that identify all of the input.

        A build-id alone must not name a table that processes share: the builder of a file can give it the
        build-id of the C library.
        """
        digest = hashlib.blake2b(digest_size=16)
        numbers = (self.text_start, self.text_end, self.eh_frame_vaddr, self.eh_frame_hdr_vaddr)
        digest.update(repr((self.build_id, numbers)).encode())
        for section in (self.eh_frame, self.eh_frame_hdr, self.debug_frame):
            digest.update(len(section).to_bytes(8, "little"))
            digest.update(section)
        return digest.digest()


def table_of(image: ElfImage, max_rows: int = MAX_ROWS) -> UnwindTable:
    """Build the table of an open file. Raises `BadElf` where it has none."""
    return build_table(sections_of(image), max_rows)


def sections_of(image: ElfImage) -> FrameSections:
    """Read what `build_table` needs from a file. Raises `BadElf`."""
    if image.machine != EM_X86_64:
        raise BadElf(f"{image.name}: unwinding supports x86-64, not machine {image.machine}")
    text = [segment for segment in image.segments if segment.executable]
    if not text:
        raise BadElf(f"{image.name}: has no executable segment")
    eh_frame, hdr, debug_frame = (
        image.section(name) for name in (".eh_frame", ".eh_frame_hdr", ".debug_frame")
    )
    return FrameSections(
        image.build_id,
        min(segment.vaddr for segment in text),
        max(segment.vaddr + segment.file_size_bytes for segment in text),
        eh_frame.data if eh_frame else b"",
        eh_frame.vaddr if eh_frame else 0,
        hdr.data if hdr else b"",
        hdr.vaddr if hdr else 0,
        debug_frame.data if debug_frame else b"",
    )


def build_table(sections: FrameSections, max_rows: int = MAX_ROWS) -> UnwindTable:
    """Build a table of at most `max_rows` rows, besides one for each page of text.

    Raises `BadElf` where the text makes no sense or not a single FDE is usable.
    """
    text_start = sections.text_start & -PAGE_BYTES
    page_count = (sections.text_end - text_start + PAGE_BYTES - 1) >> PAGE_BITS
    if not 0 < page_count <= TEXT_LIMIT_BYTES >> PAGE_BITS:
        raise BadElf(f"text from {sections.text_start:#x} to {sections.text_end:#x} is not plausible")
    collector = _Collector(text_start, sections.text_end, max_rows)
    functions = collector.functions_of(*_eh_frame_of(sections))
    functions = functions.and_also(collector.functions_of(*_debug_frame_of(sections)))
    addresses, rule_numbers, fde_count = rows_of(functions, collector.programs, max_rows)
    if not fde_count:
        raise BadElf(f"no usable call frame information ({_listed(collector.skipped)})")
    collector.skip(SkipReason.LIMIT, len(functions) - fde_count)
    rows, page_index = page_rows(addresses, rule_numbers, page_count)
    rows.flags.writeable = page_index.flags.writeable = False
    return UnwindTable(
        sections.build_id,
        text_start,
        rows,
        page_index,
        collector.programs.rules,
        fde_count,
        dict(sorted(collector.skipped.items())),
    )


def _eh_frame_of(sections: FrameSections) -> tuple[CallFrameSection, Iterable[int]]:
    section = CallFrameSection(sections.eh_frame, sections.eh_frame_vaddr, is_eh_frame=True)
    offsets = fde_offsets(
        sections.eh_frame_hdr, sections.eh_frame_hdr_vaddr, sections.eh_frame_vaddr, len(sections.eh_frame)
    )
    return section, section.fde_offsets() if offsets is None else offsets.tolist()


def _debug_frame_of(sections: FrameSections) -> tuple[CallFrameSection, Iterable[int]]:
    section = CallFrameSection(sections.debug_frame, 0, is_eh_frame=False)
    return section, section.fde_offsets()


class _Collector:
    """Turns FDEs into functions, and counts invalid ones."""

    def __init__(self, text_start: int, text_end: int, max_rows: int) -> None:
        self.programs = ProgramSet(max_rows, INSTRUCTION_LIMIT_BYTES)
        self.skipped: Counter[SkipReason] = Counter()
        self._text_start = text_start
        self._text_bytes = text_end - text_start

    def skip(self, reason: SkipReason, count: int = 1) -> None:
        if count:
            self.skipped[reason] += count

    def functions_of(self, section: CallFrameSection, offsets: Iterable[int]) -> Functions:
        """Return the functions of a section's FDEs, sorted and without overlaps."""
        starts, ends, programs = array("I"), array("I"), array("I")
        for offset in offsets:
            try:
                start, end, program = self._function_of(section.fde_at(offset))
            except MalformedCfi as error:
                self.skip(error.reason)
                continue
            starts.append(start)
            ends.append(end)
            programs.append(program)
        found = Functions(*(np.frombuffer(column, np.uint32) for column in (starts, ends, programs)))
        functions = without_overlaps(found)
        self.skip(SkipReason.OVERLAP, len(found) - len(functions))
        return functions

    def _function_of(self, fde: Fde) -> tuple[int, int, int]:
        start = fde.start - self._text_start
        if fde.size_bytes <= 0:
            raise MalformedCfi(SkipReason.EMPTY)
        if not 0 <= start < start + fde.size_bytes <= self._text_bytes:
            raise MalformedCfi(SkipReason.OUTSIDE_TEXT)
        program = self.programs.number_of(fde)
        fault = self.programs.fault_of(program)
        if fault is not None:
            self.skip(fault)
        return start, start + fde.size_bytes, program


def _listed(skipped: Counter[SkipReason]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items())) or "no FDE"
