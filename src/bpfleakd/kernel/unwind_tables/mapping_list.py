"""The mapping list of a process: the piece of a table or the rule for each range of addresses.

Ranges of managed code need no table: their row has the number of their rule. They take precedence over the
table of their file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct

from bpfleakd.kernel import abi
from bpfleakd.kernel.unwind_tables.shards import Piece
from bpfleakd.unwind.managed_code import CodeRange
from bpfleakd.unwind.rules import GAP_NUMBER, UnwindRule

# A row of UNWIND_MAPPINGS: start, end, bias, shard, gap_rule, index_base.
_Entry: TypeAlias = tuple[int, int, int, int, int, int]


class TableMapping(Struct, frozen=True):
    """The range of a table in a process: addresses `[start, end)`, `bias` above the file's own."""

    start: int
    end: int
    bias: int
    pieces: tuple[Piece, ...]


def mapping_rows(
    mappings: Iterable[TableMapping], ranges: Iterable[CodeRange], number_of: Callable[[UnwindRule], int]
) -> list[_Entry]:
    """The rows of UNWIND_MAPPING of a process, in order; `ranges` do not overlap."""
    ranges = tuple(ranges)
    whole = sorted(code for code in ranges if not code.only_gaps)
    gaps = [(code, number_of(code.rule)) for code in ranges if code.only_gaps]
    rows = [piece for mapping in mappings for e in _entries(mapping, gaps) for piece in _around(e, whole)]
    rows += [(c.start, c.end, 0, abi.ONE_RULE, 0, number_of(c.rule)) for c in whole]
    return sorted(rows)


def _around(entry: _Entry, ranges: Sequence[CodeRange]) -> Iterator[_Entry]:
    """Yield the parts of a row outside of the ranges, which are in order."""
    start, end, bias, shard, gap_rule, index_base = entry
    for code in ranges:
        if code.end <= start or code.start >= end:
            continue
        if start < code.start:
            yield start, code.start, bias, shard, gap_rule, index_base
        start = code.end
    if start < end:
        yield start, end, bias, shard, gap_rule, index_base


def _entries(mapping: TableMapping, gaps: Iterable[tuple[CodeRange, int]]) -> Iterator[_Entry]:
    """Yield the parts of a mapping that its table's pieces cover, as UNWIND_MAPPING rows."""
    in_gaps = (number for code, number in gaps if code.start <= mapping.start < code.end)
    gap_rule = next(in_gaps, GAP_NUMBER)
    for piece in mapping.pieces:
        start = max(mapping.start, piece.start + mapping.bias)
        end = min(mapping.end, piece.end + mapping.bias)
        if start < end:
            yield start, end, mapping.bias % (1 << 64), piece.shard, gap_rule, piece.index_base
