"""Finds V8's code in a process, by its mappings.

The memory that V8 reserves for compiled code has no file and is executable in parts. It may contain a copy of
the builtins, which is a second mapping of the file. In the file itself, code without call frame information
is V8's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bpfleakd.model.code.mapping import Mapping

# V8's kMaximalCodeRangeSize on x86-64: 128 MB, since 10.x 512 MB.
_RESERVED_MAX_BYTES = 512 << 20


def code_ranges(mappings: Sequence[Mapping], v8_file: str) -> list[tuple[int, int, bool]]:
    """All code of V8: start, end, and whether only code without call frame information is V8's.

    The mappings are in order; `v8_file` is the path there of the file that V8 is in.
    """
    text = [one for one in mappings if one.path == v8_file and one.executable]
    copies = {one.start for one in text if any(_is_copy(one, other) for other in text)}
    found = [(start, end, False) for start, end in _reserved(mappings, copies)]
    found += [(one.start, one.end, True) for one in text if one.start not in copies]
    return found


def _is_copy(mapping: Mapping, other: Mapping) -> bool:
    """Whether `other` maps a part of the same file content."""
    end, other_end = (one.offset + one.end - one.start for one in (mapping, other))
    is_inside = other.offset <= mapping.offset and end <= other_end
    return mapping != other and is_inside and end - mapping.offset < other_end - other.offset


def _reserved(mappings: Sequence[Mapping], copies: set[int]) -> Iterator[tuple[int, int]]:
    run: list[Mapping] = []
    for mapping in mappings:
        is_part = (not mapping.inode and not mapping.path) or mapping.start in copies
        if run and (not is_part or run[-1].end != mapping.start):
            yield from _around_code(run)
            run = []
        if is_part:
            run.append(mapping)
    yield from _around_code(run)


def _around_code(run: Sequence[Mapping]) -> Iterator[tuple[int, int]]:
    """The part of adjacent memory that may be reserved for code; empty if none of it is code."""
    code = [mapping for mapping in run if mapping.executable]
    if code:
        start = max(run[0].start, code[0].start - _RESERVED_MAX_BYTES)
        yield start, min(run[-1].end, code[-1].end + _RESERVED_MAX_BYTES)
