"""Entries of the table of operands: shared by content, a part of them for each process, free when unused."""

from __future__ import annotations

import pytest

from bpfleakd import errors
from bpfleakd.kernel.probes.operand_table import OF_PROCESS_MAX, OperandTable

FREE = bytes(4)


class Written(list[bytes]):
    """The map."""

    def table(self) -> OperandTable:
        return OperandTable(self, self.__setitem__)


def test_the_same_content_is_one_entry():
    """Whichever process asks for it."""
    entries = Written([FREE] * 3)
    table = entries.table()
    assert [table.number(pid, b"same") for pid in (1, 2, 1)] == [0, 0, 0]
    assert table.number(2, b"more") == 1
    assert entries == [b"same", b"more", FREE]


def test_one_process_cannot_fill_the_table():
    """It is refused more than its share, also of entries that others made; they have room."""
    table = Written([FREE] * (2 * OF_PROCESS_MAX)).table()
    for number in range(OF_PROCESS_MAX):
        table.number(1, bytes([number + 1] * 4))
    table.number(2, b"more")
    for content in (b"more", b"most"):
        with pytest.raises(errors.TargetRefused):
            table.number(1, content)
    assert table.number(1, bytes([1] * 4)) == 0
    assert table.number(2, b"most") == OF_PROCESS_MAX + 1


def test_a_table_that_is_full_gets_room_when_a_process_ends():
    """Entries that another process uses as well stay."""
    entries = Written([FREE] * 2)
    table = entries.table()
    table.number(1, b"ours")
    table.number(2, b"ours")
    table.number(1, b"mine")
    with pytest.raises(errors.CapacityError):
        table.number(3, b"last")
    table.release(1)
    assert table.number(3, b"last") == 1
    assert entries == [b"ours", b"last"]


def test_entries_of_an_earlier_daemon_stay():
    """Its probes still refer to them; a new probe with the same operands reuses them."""
    entries = Written([b"kept", FREE])
    table = entries.table()
    assert table.number(1, b"kept") == 0
    table.release(1)
    assert table.number(2, b"more") == 1
    assert entries == [b"kept", b"more"]
