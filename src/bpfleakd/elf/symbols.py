"""Symbol tables: find the function at an address, and the address of a function.

Rules:
- A table is made of one file's .symtab and .dynsym, and of those of its separate debug files.
- It only contains numbers, 13 bytes per function. Names stay in the files and are read when a function is
  found, so the images must stay open as long as the table is used.
- An address belongs to the innermost sized symbol around it; else to the nearest unsized one before it, which
  reaches up to the next symbol or to the end of its section.
- Of several names for one function the best is shown: global before local, without leading underscores, short
  (`malloc` rather than `__libc_malloc`), in this order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.symbol_section import (
    HIDDEN_VERSION,
    IFUNC,
    LOCAL,
    UNSIZED,
    SymbolSection,
    read_functions,
)
from bpfleakd.printable import printable, shortened

# Twice the functions of Chromium with all its symbols; more are left out and counted.
FUNCTIONS_MAX = 2_000_000

# How many symbols before an address are tried as its enclosing function, and how many names are compared.
ENCLOSING_MAX = 32
ALIASES_MAX = 16

# Real C++ programs have longer names, but those are too long to be useful.
NAME_LIMIT_CHARACTERS = 4_096

# Maximum of names to read in a search: a hostile file may have two million that begin with "malloc".
CANDIDATES_MAX = 50_000

_STRINGS_CHUNK_BYTES = 1 << 20
_PREFIX_BYTES = 8


class Symbol(Struct, frozen=True):
    """A function: `size_bytes` extends to the next symbol if the file gives no size."""

    name: str
    vaddr: int
    size_bytes: int


class SymbolTable:
    """The functions of one file. `omitted` counts the symbols left out above `FUNCTIONS_MAX`."""

    def __init__(self, images: Sequence[ElfImage]) -> None:
        """Read the symbols of an image followed by its debug images. Raises `BadElf`."""
        tables = _symbol_sections(images)
        self.omitted = sum(table.omitted for table in tables)
        self._strings = [table.strings for table in tables]
        self._string_bases = np.cumsum([0] + [strings.size_bytes for strings in self._strings])
        self._set_rows(tables)
        self._text_starts, self._text_ends = _executable_ranges(images)

    def _set_rows(self, tables: list[SymbolSection]) -> None:
        # Column by column: a browser has a million functions, and every temporary is ten megabytes.
        addresses = _column(np.uint64, [table.rows.addresses for table in tables])
        self._origin = int(addresses.min()) if len(addresses) else 0
        addresses -= np.uint64(self._origin)
        # Nearly every file spans less than 4 GB: 32 bits take half the memory, and the traits fit into the
        # sort key.
        wide = len(addresses) > 0 and int(addresses.max()) >= 1 << 32
        traits = _column(np.uint8, [table.rows.traits for table in tables])
        order = np.lexsort((traits, addresses)) if wide else np.argsort(addresses << 8 | traits)
        self._addresses: NDArray[np.uint32 | np.uint64] = addresses[order].astype(
            np.uint64 if wide else np.uint32
        )
        del addresses
        self._traits = traits[order]
        self._sizes = _column(np.uint32, [table.rows.sizes_bytes for table in tables])[order]
        # One number for all string tables: where the table starts plus the offset in the table.
        dtype = np.uint64 if self._string_bases[-1] >= 1 << 32 else np.uint32
        bases = self._string_bases.astype(dtype)
        names = [table.rows.names + base for table, base in zip(tables, bases, strict=False)]
        self._names = _column(dtype, names)[order]

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def size_bytes(self) -> int:
        """The memory of the table."""
        return sum(array.nbytes for array in (self._addresses, self._sizes, self._traits, self._names))

    def lookup(self, vaddr: int) -> Symbol | None:
        """The function that contains an address. Raises `BadElf` if the file was truncated since."""
        inside = vaddr - self._origin
        if not 0 <= inside <= np.iinfo(self._addresses.dtype).max:
            return None
        above = self._row_of(inside, "right")
        row = self._enclosing_row(inside, above)
        if row is None and above and self._traits[above - 1] & UNSIZED:
            # An unsized symbol extends to the next one, but not into another section.
            start = int(self._addresses[above - 1]) + self._origin
            row = above - 1 if vaddr < self._end_of_text(start) else None
        return None if row is None else self._symbol(row)

    def _row_of(self, inside: int, side: Literal["left", "right"]) -> int:
        # The key must have the array's type: otherwise numpy converts the array at every lookup.
        return int(np.searchsorted(self._addresses, self._addresses.dtype.type(inside), side=side))

    def _enclosing_row(self, inside: int, above: int) -> int | None:
        for row in range(above - 1, max(-1, above - 1 - ENCLOSING_MAX), -1):
            if inside - int(self._addresses[row]) < int(self._sizes[row]):
                return row
        return None

    def _symbol(self, row: int) -> Symbol:
        inside = int(self._addresses[row])
        first, end = self._row_of(inside, "left"), self._row_of(inside, "right")
        name = self._best_name(range(first, min(end, first + ALIASES_MAX)))
        vaddr = inside + self._origin
        return Symbol(name, vaddr, int(self._sizes[row]) or self._size_up_to_row(vaddr, end))

    def _size_up_to_row(self, vaddr: int, row: int) -> int:
        end = self._end_of_text(vaddr)
        if row < len(self):
            end = min(end, int(self._addresses[row]) + self._origin)
        return max(0, end - vaddr)

    def _end_of_text(self, vaddr: int) -> int:
        """The end of the executable section that contains an address, 0 outside of them."""
        index = int(np.searchsorted(self._text_starts, np.uint64(vaddr), side="right")) - 1
        return int(self._text_ends[index]) if index >= 0 and vaddr < self._text_ends[index] else 0

    def _best_name(self, rows: range) -> str:
        def merit(named: tuple[int, str]) -> tuple[int, bool, int, str]:
            row, name = named
            return int(self._traits[row]) & LOCAL, name.startswith("_"), len(name), name

        return min(((row, self._name(row).partition("@")[0]) for row in rows), key=merit)[1]

    def _name(self, row: int) -> str:
        number = int(self._names[row])
        table = int(np.searchsorted(self._string_bases, number, side="right")) - 1
        raw = self._strings[table].name_at(number - int(self._string_bases[table]))
        return shortened(printable(raw.decode(errors="surrogateescape")), NAME_LIMIT_CHARACTERS)

    def addresses_of(self, names: Collection[str]) -> dict[str, int]:
        """Where functions of these names are defined, without those that are not.

        If there are several, this returns the exported one in its default version; a local one only if there
        is no other. Indirect functions are excluded: their symbol is the resolver, not the function. Raises
        `BadElf` if the file was truncated since.
        """
        best: dict[str, tuple[int, int]] = {}
        for row in islice(self._rows_starting_like({name.encode() for name in names}), CANDIDATES_MAX):
            name, _, version = self._name(row).partition("@")
            traits = int(self._traits[row])
            if name not in names or traits & IFUNC:
                continue
            # .dynsym marks an old version with a bit, .symtab with one "@" instead of two.
            hidden = bool(traits & HIDDEN_VERSION) or version[:1] not in ("", "@")
            merit = 2 * bool(traits & LOCAL) + hidden
            if name not in best or merit < best[name][0]:
                best[name] = (merit, int(self._addresses[row]) + self._origin)
        return {name: vaddr for name, (_, vaddr) in best.items()}

    def _rows_starting_like(self, names: Collection[bytes]) -> Iterator[int]:
        prefixes = _prefixes_by_mask(names)
        order = np.argsort(self._names)
        numbers = self._names[order]
        for base, strings in zip(self._string_bases.tolist(), self._strings, strict=False):
            for start in range(0, strings.size_bytes, _STRINGS_CHUNK_BYTES):
                end = min(strings.size_bytes, start + _STRINGS_CHUNK_BYTES)
                low, high = np.searchsorted(numbers, np.array([base + start, base + end], numbers.dtype))
                if low == high:
                    continue
                text = strings.read(start, end - start + _PREFIX_BYTES)
                heads = _eight_bytes_at(text, numbers[low:high] - numbers.dtype.type(base + start))
                for mask, wanted in prefixes.items():
                    yield from order[low:high][np.isin(heads & mask, wanted)].tolist()


def _symbol_sections(images: Sequence[ElfImage]) -> list[SymbolSection]:
    tables: list[SymbolSection] = []
    for section_name in (".symtab", ".dynsym"):
        # .symtab repeats .dynsym, if it exists.
        known = np.sort(_column(np.uint64, [table.rows.addresses for table in tables]))
        for image in images:
            room = FUNCTIONS_MAX - sum(len(table.rows) for table in tables)
            if table := read_functions(image, section_name, room, known):
                tables.append(table)
    return tables


_Unsigned = TypeVar("_Unsigned", np.uint8, np.uint32, np.uint64)


def _column(dtype: type[_Unsigned], parts: Sequence[NDArray[_Unsigned]]) -> NDArray[_Unsigned]:
    return np.concatenate([np.empty(0, dtype), *parts])


def _executable_ranges(images: Sequence[ElfImage]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    sections = {(s.vaddr, s.size_bytes) for image in images for s in image.sections if s.executable}
    segments = {(s.vaddr, s.memory_size_bytes) for image in images for s in image.segments if s.executable}
    ranges = sorted((vaddr, min(vaddr + size, (1 << 64) - 1)) for vaddr, size in sections or segments)
    return (
        np.array([start for start, _ in ranges], dtype=np.uint64),
        np.array([end for _, end in ranges], dtype=np.uint64),
    )


def _prefixes_by_mask(names: Collection[bytes]) -> dict[np.uint64, NDArray[np.uint64]]:
    prefixes: dict[int, list[int]] = {}
    for name in names:
        head = name[:_PREFIX_BYTES]
        prefixes.setdefault((1 << 8 * len(head)) - 1, []).append(int.from_bytes(head, "little"))
    return {np.uint64(mask): np.array(heads, dtype=np.uint64) for mask, heads in prefixes.items()}


def _eight_bytes_at(text: bytes, offsets: NDArray[np.unsignedinteger]) -> NDArray[np.uint64]:
    # A view with a stride of one byte: the eight bytes from every position, without a copy of the text.
    padded = text + bytes(_PREFIX_BYTES)
    words: NDArray[np.uint64] = np.ndarray(len(padded) - 7, "<u8", padded, strides=(1,))[offsets]
    return words
