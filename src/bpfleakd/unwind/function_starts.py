"""Where functions begin, as a file's own call frame information has it: also in files without symbols."""

from __future__ import annotations

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.unwind.build import sections_of
from bpfleakd.unwind.cfi import CallFrameSection
from bpfleakd.unwind.eh_frame_hdr import fde_offsets
from bpfleakd.unwind.malformed import MalformedCfi

__all__ = ["function_starts"]


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
