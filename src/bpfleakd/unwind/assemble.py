"""Assembles the rows of many functions into one table, by arithmetic on whole arrays.

Rules:
- Addresses are uint32, relative to the first page of the text.
- Functions are sorted and do not overlap (`without_overlaps`), so only starts are sorted here.
- Rows that change nothing are left out, except those at the beginning of a page.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct

from bpfleakd.unwind.rules import GAP_NUMBER
from bpfleakd.unwind.table import PAGE_BITS, ROW_ADDRESS_BITS, ROW_ADDRESS_MASK

# The arrays for this many functions take some 10 MB; those of a whole browser would take hundreds.
_FUNCTIONS_AT_ONCE = 16_384


class RowPrograms(Protocol):
    """Rows that many functions share, as uint32 arrays."""

    def first_rows(self) -> np.ndarray:
        """The index of each program's first row, and behind them the number of rows."""

    def row_offsets(self) -> np.ndarray:
        """Each row's offset from the start of the function, ascending in a program from 0."""

    def row_rules(self) -> np.ndarray:
        """Each row's rule number."""


class Functions(Struct, frozen=True, eq=False):
    """Ranges of text with the number of their program, as parallel uint32 arrays; `ends` is exclusive."""

    starts: np.ndarray
    ends: np.ndarray
    programs: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    def where(self, selection: np.ndarray | slice) -> Functions:
        """Return those that a mask, an array of indexes or a slice selects."""
        return Functions(self.starts[selection], self.ends[selection], self.programs[selection])

    def and_also(self, others: Functions) -> Functions:
        """Return these, followed by those of the others that touch none of these. Both must be sorted."""
        if not len(self):
            return others
        # The last of ours that starts before another one's end is the only one that can touch it.
        before = np.searchsorted(self.starts, others.ends, side="left")
        is_free = (before == 0) | (self.ends[before - 1] <= others.starts)
        free = others.where(is_free)
        pairs = zip(_columns(self), _columns(free), strict=True)
        joined = Functions(*(np.concatenate(pair) for pair in pairs))
        return joined.where(np.argsort(joined.starts, kind="stable"))


def _columns(functions: Functions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return functions.starts, functions.ends, functions.programs


def without_overlaps(functions: Functions) -> Functions:
    """The functions sorted by start; of those that overlap, the one that starts first.

    Of several with the same start, returns the first in the given order.
    """
    functions = functions.where(np.argsort(functions.starts, kind="stable"))
    if np.all(functions.starts[1:] >= functions.ends[:-1]):
        return functions
    kept = np.zeros(len(functions), dtype=bool)
    reached = 0
    ranges = zip(functions.starts.tolist(), functions.ends.tolist(), strict=True)
    for index, (start, end) in enumerate(ranges):
        if start >= reached:
            kept[index], reached = True, end
    return functions.where(kept)


def rows_of(functions: Functions, programs: RowPrograms, max_rows: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The rows' addresses, their rule numbers (both uint32), and the number of their functions.

    If the rows would exceed `max_rows`, these are the first functions only.
    """
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    function_count = 0
    for start in range(0, len(functions), _FUNCTIONS_AT_ONCE):
        chunk = functions.where(slice(start, start + _FUNCTIONS_AT_ONCE))
        addresses, rule_numbers, fitting, row_count = _rows_of_chunk(chunk, programs, max_rows)
        parts.append((addresses, rule_numbers))
        function_count += fitting
        max_rows -= row_count
        if fitting < len(chunk):
            break
    if not parts:
        return np.zeros(0, np.uint32), np.zeros(0, np.uint32), 0
    addresses = np.concatenate([addresses for addresses, _ in parts])
    rule_numbers = np.concatenate([rule_numbers for _, rule_numbers in parts])
    parts.clear()
    return *_without_repetitions(addresses, rule_numbers), function_count


def _rows_of_chunk(
    functions: Functions, programs: RowPrograms, max_rows: int
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """As `rows_of`, and how many rows there were before those that change nothing were left out."""
    first_rows, offsets, rules = programs.first_rows(), programs.row_offsets(), programs.row_rules()
    # One row more than the program has: the gap behind the function.
    counts = np.diff(first_rows)[functions.programs] + np.uint32(1)
    ends = np.cumsum(counts, dtype=np.int64)
    fitting = int(np.searchsorted(ends, max_rows, side="right"))
    functions, counts, ends = functions.where(slice(fitting)), counts[:fitting], ends[:fitting]
    if not fitting:
        return np.zeros(0, np.uint32), np.zeros(0, np.uint32), 0, 0

    # Position of each row in the programs' arrays: the first row of its program, and one further each time.
    positions = np.arange(ends[-1], dtype=np.uint32)
    # Wraps around below zero and back, which uint32 does without harm.
    positions += np.repeat(first_rows[functions.programs] - (ends.astype(np.uint32) - counts), counts)
    gaps = ends - 1
    positions[gaps] = 0
    rule_numbers = rules[positions]
    rule_numbers[gaps] = GAP_NUMBER
    addresses = np.take(offsets, positions, out=positions)
    room = np.repeat(functions.ends - functions.starts, counts)
    is_inside = addresses < room
    del room
    addresses += np.repeat(functions.starts, counts)
    addresses[gaps] = functions.ends
    is_inside[gaps] = True
    addresses, rule_numbers = addresses[is_inside], rule_numbers[is_inside]
    return *_without_repetitions(addresses, rule_numbers), fitting, int(ends[-1])


def _without_repetitions(addresses: np.ndarray, rule_numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # Where functions adjoin, the gap behind the first has no extent: the later row of an address holds.
    kept = np.append(addresses[1:] != addresses[:-1], True)
    addresses, rule_numbers = _selected(addresses, rule_numbers, kept)
    kept = np.append(True, rule_numbers[1:] != rule_numbers[:-1])
    return _selected(addresses, rule_numbers, kept)


def _selected(
    addresses: np.ndarray, rule_numbers: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return (addresses, rule_numbers) if kept.all() else (addresses[kept], rule_numbers[kept])


def page_rows(
    addresses: np.ndarray, rule_numbers: np.ndarray, page_count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the packed rows and the page index, having given every page a row at its beginning.

    The arrays that are handed in are used up.
    """
    page_starts = np.arange(page_count, dtype=np.uint32) << np.uint32(PAGE_BITS)
    first = np.searchsorted(addresses, page_starts, side="left")
    if len(addresses):
        has_row = (first < len(addresses)) & (addresses[np.minimum(first, len(addresses) - 1)] == page_starts)
        in_force = np.where(first > 0, rule_numbers[first - 1], np.uint32(GAP_NUMBER))
    else:
        has_row = np.zeros(page_count, dtype=bool)
        in_force = np.full(page_count, GAP_NUMBER, dtype=np.uint32)
    missing = ~has_row
    # In place: these arrays are the largest of all.
    rows = rule_numbers
    rows <<= np.uint32(ROW_ADDRESS_BITS)
    addresses &= np.uint32(ROW_ADDRESS_MASK)
    rows |= addresses
    rows = np.insert(rows, first[missing], in_force[missing] << np.uint32(ROW_ADDRESS_BITS))
    page_index = first + np.cumsum(missing) - missing
    return rows, np.append(page_index, len(rows)).astype(np.uint32)
