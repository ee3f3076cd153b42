"""The unwind table of one file: rows sorted by address, found through an index by 4 KiB page.

Rules, which the BPF program relies on and `check` verifies:
- A row is a u32: the low 12 bits are an address within its page, the upper 20 the number of the rule that
  holds from there to the next row.
- `page_index[i]` is the first row of page i, `page_index[i + 1]` the end of its rows: there is one more
  element than pages, and the last one is the number of rows.
- The rows of a page ascend strictly, and the first of them is at the page's beginning: a search within
  [page_index[i], page_index[i + 1]) always finds the row in force.
- Text without an FDE has its own row (GAP), so no row extends beyond its function.
- Rule numbers are those of `rules`, whose first three are GAP, STOP and END. For the kernel, which has one
  array of rules for all files, `rows_numbered_by` renumbers them.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import Struct

from bpfleakd.unwind.malformed import SkipReason
from bpfleakd.unwind.rules import GAP, RESERVED_RULES, RuleSet, UnwindRule

PAGE_BITS = 12
PAGE_BYTES = 1 << PAGE_BITS
ROW_ADDRESS_BITS = PAGE_BITS
ROW_ADDRESS_MASK = PAGE_BYTES - 1

# The largest text known (a browser) has 250 MB. The index takes 4 bytes a page, so this is 1 MB.
TEXT_LIMIT_BYTES = 1 << 30


class UnwindTable(Struct, frozen=True, eq=False):
    """How to unwind from any address of a file.

    `text_start` is the file's own address (vaddr) of the first page. `rows` and `page_index` are uint32
    and read-only. `skipped` counts FDEs that are not in the table, or not whole, by the reason.
    """

    build_id: str | None
    text_start: int
    rows: np.ndarray
    page_index: np.ndarray
    rules: tuple[UnwindRule, ...]
    fde_count: int
    skipped: dict[SkipReason, int] = msgspec.field(default_factory=dict)

    @property
    def page_count(self) -> int:
        return len(self.page_index) - 1

    @property
    def text_end(self) -> int:
        return self.text_start + self.page_count * PAGE_BYTES

    @property
    def size_bytes(self) -> int:
        """What the rows and the index take in the kernel."""
        return self.rows.nbytes + self.page_index.nbytes

    def lookup(self, vaddr: int) -> UnwindRule:
        """Return the rule at `vaddr`; GAP outside the text. The search that BPF does, in Python."""
        page = (vaddr - self.text_start) >> PAGE_BITS
        if not 0 <= page < self.page_count:
            return GAP
        address = vaddr & ROW_ADDRESS_MASK
        # Invariant: the row at `low` is at or before the address, the one at `high` behind it.
        low, high = int(self.page_index[page]), int(self.page_index[page + 1])
        while high - low > 1:
            middle = (low + high) >> 1
            if int(self.rows[middle]) & ROW_ADDRESS_MASK <= address:
                low = middle
            else:
                high = middle
        return self.rules[int(self.rows[low]) >> ROW_ADDRESS_BITS]

    def rows_numbered_by(self, rules: RuleSet, reserved: int = 0) -> np.ndarray:
        """Return the rows (uint32) with the numbers of a rule set, which learns the rules it lacks.

        It keeps room for `reserved` ones of others.
        """
        numbers = np.array([rules.number_of(rule, reserved) for rule in self.rules], dtype=np.uint32)
        renumbered: np.ndarray = numbers[self.rows >> ROW_ADDRESS_BITS]
        renumbered <<= ROW_ADDRESS_BITS
        renumbered |= self.rows & ROW_ADDRESS_MASK
        return renumbered


def check(table: UnwindTable) -> None:
    """Verify the rules at the top of this module. Raises ValueError with the one that is broken."""
    rows, index = table.rows, table.page_index.astype(np.int64)
    if rows.dtype != np.uint32 or table.page_index.dtype != np.uint32:
        raise ValueError("rows and page index must be uint32")
    if table.text_start & ROW_ADDRESS_MASK or table.text_start < 0:
        raise ValueError(f"text starts at {table.text_start:#x}, not at a page")
    if not 2 <= len(index) <= TEXT_LIMIT_BYTES // PAGE_BYTES + 2:
        raise ValueError(f"a page index of {len(index)} elements")
    if index[0] != 0 or index[-1] != len(rows) or np.any(np.diff(index) <= 0):
        raise ValueError("the page index does not cut the rows into pages")
    addresses = rows & ROW_ADDRESS_MASK
    if np.any(addresses[index[:-1]]):
        raise ValueError("a page without a row at its beginning")
    descends = addresses[1:] <= addresses[:-1]
    descends[index[1:-1] - 1] = False
    if np.any(descends):
        raise ValueError("rows of a page that do not ascend")
    if table.rules[: len(RESERVED_RULES)] != RESERVED_RULES:
        raise ValueError("rules that do not begin with GAP, STOP, END")
    if int(rows.max()) >> ROW_ADDRESS_BITS >= len(table.rules):
        raise ValueError("a row with the number of no rule")
