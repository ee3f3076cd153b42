"""The beginnings of functions according to a file's own call frame information, also without symbols."""

from __future__ import annotations

import numpy as np

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.unwind.build import sections_of
from bpfleakd.unwind.cfi import CallFrameSection
from bpfleakd.unwind.eh_frame_hdr import fde_offsets, fdes_by_start
from bpfleakd.unwind.malformed import MalformedCfi


def function_starts(image: ElfImage) -> frozenset[int]:
    """The first address (vaddr) of every range that .eh_frame describes; empty without any."""
    try:
        sections = sections_of(image)
    except BadElf:
        return frozenset()
    section = CallFrameSection(sections.eh_frame, sections.eh_frame_vaddr, is_eh_frame=True)
    listed = fde_offsets(
        sections.eh_frame_hdr, sections.eh_frame_hdr_vaddr, sections.eh_frame_vaddr, len(sections.eh_frame)
    )
    starts = set()
    for offset in section.fde_offsets() if listed is None else listed.tolist():
        try:
            starts.add(section.fde_at(offset).start)
        except MalformedCfi:
            continue
    return frozenset(starts)


class FunctionExtents:
    """Finds the function that contains an address, by the sorted table of .eh_frame_hdr.

    A file without that table has no results; linkers write one, for C as well.
    """

    def __init__(self, image: ElfImage) -> None:
        self._starts = self._offsets = np.zeros(0, np.int64)
        self._known: dict[int, int | None] = {}
        try:
            sections = sections_of(image)
        except BadElf:
            return
        self._section = CallFrameSection(sections.eh_frame, sections.eh_frame_vaddr, is_eh_frame=True)
        table = fdes_by_start(sections.eh_frame_hdr, sections.eh_frame_hdr_vaddr, sections.eh_frame_vaddr)
        if table is not None:
            order = np.argsort(table[0], kind="stable")
            self._starts, self._offsets = table[0][order], table[1][order]

    def start_of(self, vaddr: int) -> int | None:
        """The beginning of the function at an address; None if no function is known there."""
        index = int(np.searchsorted(self._starts, vaddr, side="right")) - 1
        if index < 0:
            return None
        if index not in self._known:
            self._known[index] = self._end_of(index)
        end = self._known[index]
        return int(self._starts[index]) if end is not None and vaddr < end else None

    def _end_of(self, index: int) -> int | None:
        """The end of a listed function; None if its FDE is another's, or not an FDE."""
        try:
            fde = self._section.fde_at(int(self._offsets[index]))
        except MalformedCfi:
            return None
        return fde.start + fde.size_bytes if fde.start == int(self._starts[index]) else None
