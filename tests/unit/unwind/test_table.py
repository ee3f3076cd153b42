"""The table: lookups, pages, gaps, overlaps and limits, with hand-made call frame information."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from msgspec.structs import replace

from bpfleakd.errors import BadElf
from bpfleakd.unwind.build import FrameSections, build_table
from bpfleakd.unwind.malformed import SkipReason
from bpfleakd.unwind.rules import END, GAP, STOP, CfaKind, RbpKind, RuleSet, UnwindRule
from bpfleakd.unwind.table import ROW_ADDRESS_BITS, ROW_ADDRESS_MASK, check

from .hand_made import (
    ADVANCE_1,
    DEF_CFA_RBP_16,
    DEF_CFA_RSP_8,
    EH_FRAME_VADDR,
    RBP_AT_MINUS_16,
    TEXT_END,
    TEXT_START,
    USUAL_CIE,
    EhFrame,
    advance,
    def_cfa_offset,
)

RSP_8, RSP_16 = UnwindRule(CfaKind.RSP, 8), UnwindRule(CfaKind.RSP, 16)
RBP_16 = UnwindRule(CfaKind.RBP, 16, rbp=RbpKind.AT_CFA, rbp_offset=-16)


def one_function(instructions: bytes, size_bytes: int = 64, **cie: object) -> EhFrame:
    frame = EhFrame()
    frame.fde(frame.cie(**cie), TEXT_START + 0x10, size_bytes, instructions)
    return frame


def test_a_row_holds_from_its_address_to_the_next() -> None:
    """The last row at or before an address is the one in force."""
    program = ADVANCE_1 + def_cfa_offset(16) + RBP_AT_MINUS_16 + b"\x43" + b"\x0d\x06"
    table = build_table(one_function(program).sections())
    start = TEXT_START + 0x10

    rules = [table.lookup(start + offset) for offset in range(-1, 65)]

    saved = UnwindRule(CfaKind.RSP, 16, rbp=RbpKind.AT_CFA, rbp_offset=-16)
    assert rules == [GAP, RSP_8, *[saved] * 3, *[RBP_16] * 60, GAP]
    check(table)


def test_every_page_begins_with_a_row() -> None:
    """A function that spans pages is in force at the beginning of each of them."""
    frame = EhFrame()
    frame.fde(frame.cie(), 0x1800, 0x3000, advance(0x1900) + def_cfa_offset(16))
    table = build_table(frame.sections())

    assert table.page_count == 8
    assert [int(row) & ROW_ADDRESS_MASK for row in table.rows[table.page_index[:-1]]] == [0] * 8
    lookups = {0x17FF: GAP, 0x1800: RSP_8, 0x2000: RSP_8, 0x3000: RSP_8, 0x30FF: RSP_8, 0x3100: RSP_16}
    lookups |= {0x4000: RSP_16, 0x47FF: RSP_16, 0x4800: GAP, 0x5000: GAP, 0x8FFF: GAP}
    assert {vaddr: table.lookup(vaddr) for vaddr in lookups} == lookups
    check(table)


def test_outside_the_text_is_a_gap() -> None:
    """Before and behind the pages of the table."""
    table = build_table(one_function(b"").sections())

    assert [table.lookup(vaddr) for vaddr in (0, TEXT_START - 1, TEXT_END, 1 << 63)] == [GAP] * 4


def test_text_that_does_not_start_at_a_page() -> None:
    """The table starts at the page's beginning, which no FDE covers."""
    table = build_table(one_function(b"").sections(text_start=TEXT_START + 8))

    assert table.text_start == TEXT_START
    assert table.lookup(TEXT_START) == GAP
    assert table.lookup(TEXT_START + 0x10) == RSP_8


def test_adjoining_functions_have_no_gap_between_them() -> None:
    """Nor rows that change nothing: two equal adjacent functions are one row."""
    frame = EhFrame()
    cie = frame.cie()
    for number in range(23):
        frame.fde(cie, 0x2000 + 16 * number, 16)
    table = build_table(frame.sections())

    in_page = table.rows[table.page_index[1] : table.page_index[2]]
    assert [int(row) & ROW_ADDRESS_MASK for row in in_page] == [0, 23 * 16]


def test_of_overlapping_fdes_the_first_address_wins() -> None:
    """Whatever the order in the section; the others are counted."""
    frame = EhFrame()
    cie = frame.cie()
    frame.fde(cie, 0x2010, 0x40, def_cfa_offset(24))
    frame.fde(cie, 0x2000, 0x20, def_cfa_offset(16))
    frame.fde(cie, 0x2020, 0x20)
    frame.fde(cie, 0x2000, 0x1000, def_cfa_offset(32))
    table = build_table(frame.sections())

    assert table.skipped == {SkipReason.OVERLAP: 2}
    assert [table.lookup(vaddr) for vaddr in (0x2000, 0x201F, 0x2020, 0x2040)] == [RSP_16, RSP_16, RSP_8, GAP]


@pytest.mark.parametrize(
    ("start", "size_bytes", "reason"),
    [
        (0x2000, 0, SkipReason.EMPTY),
        (0x2000, 0xFFFF_FFFF, SkipReason.EMPTY),
        (TEXT_START - 1, 16, SkipReason.OUTSIDE_TEXT),
        (TEXT_END - 15, 16, SkipReason.OUTSIDE_TEXT),
        (0, 16, SkipReason.OUTSIDE_TEXT),
    ],
)
def test_ranges_that_make_no_sense(start: int, size_bytes: int, reason: SkipReason) -> None:
    """They are counted by reason, and the others are not touched."""
    frame = one_function(b"")
    frame.fde(frame.cie(), start, size_bytes)

    table = build_table(frame.sections())

    assert table.skipped == {reason: 1}
    assert table.fde_count == 1


def test_rows_behind_the_end_of_the_function_are_dropped() -> None:
    """Advancing by absurd amounts does not reach into the next function."""
    table = build_table(
        one_function(advance(63) + def_cfa_offset(16) + advance(1) + def_cfa_offset(24)).sections()
    )
    start = TEXT_START + 0x10

    assert [table.lookup(start + offset) for offset in (62, 63, 64)] == [RSP_8, RSP_16, GAP]


def test_advancing_beyond_every_function() -> None:
    """A location of more than 32 bits ends the program; the rows before it remain."""
    absurd = (advance(0xFFFF_FFFF) + def_cfa_offset(16)) * 3
    table = build_table(one_function(absurd).sections())

    assert table.skipped == {SkipReason.BAD_INSTRUCTION: 1}
    assert table.lookup(TEXT_START + 0x10 + 63) == RSP_8


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"\x3f", SkipReason.BAD_INSTRUCTION),  # no such instruction
        (b"\x0b", SkipReason.BAD_INSTRUCTION),  # restore_state without remember_state
        (b"\x0a" * 100, SkipReason.LIMIT),  # nothing nests that deep
        (b"\x0e\x80\x80\x80", SkipReason.TRUNCATED),
        (b"\x0f\x7f\x77\x08\x06", SkipReason.TRUNCATED),  # a block longer than the entry
        (b"\x0e" + b"\xff" * 30, SkipReason.BAD_INSTRUCTION),  # a number without end
    ],
)
def test_from_a_bad_instruction_on_the_walk_stops(bad: bytes, reason: SkipReason) -> None:
    """The rows before it hold; a gap behind it would send the walker along an rbp of another use."""
    program = advance(4) + def_cfa_offset(16) + advance(4) + bad
    program += bytes(-(len(program) + 17) % 4) if reason is not SkipReason.TRUNCATED else b""
    frame = EhFrame()
    cie = frame.cie()
    while (len(program) + 13) % 4:
        program = b"\0" + program
    frame.fde(cie, 0x2000, 64, program)
    table = build_table(frame.sections())

    assert table.skipped == {reason: 1}
    assert [table.lookup(0x2000 + offset) for offset in (0, 4, 7, 8, 63)] == [
        RSP_8,
        RSP_16,
        RSP_16,
        STOP,
        STOP,
    ]


@pytest.mark.parametrize(
    ("instructions", "rule"),
    [
        (b"\x07\x10", END),
        (b"\x90\x02", STOP),  # the return address is elsewhere
        (b"\x09\x10\x01", STOP),  # in a register
        (b"\x87\x03", STOP),  # rsp was saved: it is not the CFA
        (b"\x14\x07\x00", RSP_8),  # rsp is CFA + 0, said aloud
        (b"\x0c\x03\x10", STOP),  # CFA in rbx
        (b"\x0f\x02\x77\x10", RSP_16),
        (b"\x0f\x03\x76\x70\x06", UnwindRule(CfaKind.DEREF_RBP, -16)),
        (b"\x0f\x05\x77\x10\x06\x23\x08", UnwindRule(CfaKind.DEREF_RSP, 16, 8)),
        (b"\x10\x06\x02\x76\x08", UnwindRule(CfaKind.RSP, 8, 0, RbpKind.AT_RBP, 8)),
        (b"\x10\x06\x02\x77\x08", UnwindRule(CfaKind.RSP, 8, 0, RbpKind.UNDEFINED)),
        (b"\x16\x06\x02\x76\x08", UnwindRule(CfaKind.RSP, 8, 0, RbpKind.UNDEFINED)),
        (b"\x07\x06", UnwindRule(CfaKind.RSP, 8, 0, RbpKind.UNDEFINED)),
        (b"\x09\x06\x0c", UnwindRule(CfaKind.RSP, 8, 0, RbpKind.UNDEFINED)),
        (b"\x86\x02\x08\x06", RSP_8),
        (b"\x86\x02\xc6", RSP_8),
        (b"\x86\x02\x06\x06", RSP_8),
        (b"\x0a\x86\x02\x0b", RSP_8),
        (b"\x2e\x40", RSP_8),
        (b"\x0e" + b"\xff" * 4 + b"\x7f", STOP),  # an offset of 35 bits
        (DEF_CFA_RBP_16 + b"\x86\x02\xc6\x86\x02", RBP_16),
    ],
)
def test_what_instructions_mean(instructions: bytes, rule: UnwindRule) -> None:
    """One state each, on top of CFA = rsp + 8 with the return address below it."""
    assert build_table(one_function(instructions).sections()).lookup(TEXT_START + 0x10) == rule


def test_restore_state_brings_the_cfa_back() -> None:
    """An epilogue inside a function."""
    program = (
        b"\x86\x02" + DEF_CFA_RBP_16 + advance(4) + b"\x0a" + DEF_CFA_RSP_8 + b"\xc6" + advance(1) + b"\x0b"
    )
    table = build_table(one_function(program).sections())

    assert [table.lookup(TEXT_START + 0x10 + offset) for offset in (0, 4, 5)] == [RBP_16, RSP_8, RBP_16]


def test_a_signal_frame() -> None:
    """glibc's trampoline: everything relative to rsp, where the kernel put the registers."""
    saved = b"\x0f\x04\x77\xa0\x01\x06" + b"\x10\x06\x03\x77\xf8\x00" + b"\x10\x10\x03\x77\xa8\x01"
    trampoline = one_function(saved, augmentation=b"zRS")

    rule = UnwindRule(CfaKind.SIGNAL, 160, 168, RbpKind.AT_RSP, 120)
    assert build_table(trampoline.sections()).lookup(TEXT_START + 0x10) == rule
    # Without the letter it is a function whose return address is far away.
    assert build_table(one_function(saved).sections()).lookup(TEXT_START + 0x10) == STOP


@pytest.mark.parametrize(
    "cie",
    [
        {"version": 2},
        {"return_column": 17},
        {"augmentation": b"xR"},
        {"augmentation": b"zR" + b"L" * 40},
        {"augmentation_data": b"\x3b"},  # relative to an unknown base
        {"augmentation_data": b"\x9b"},  # indirect
        {"augmentation_data": b"\x1d"},  # no such format
        {"instructions": b"\x3f"},
    ],
    ids=str,
)
def test_cies_that_cannot_be_used(cie: dict) -> None:
    """Their FDEs are counted, those of other CIEs stay."""
    frame = one_function(b"")
    frame.fde(frame.cie(**cie), 0x2000, 16)
    frame.fde(frame.cie(), 0x3000, 16)

    table = build_table(frame.sections())

    assert table.fde_count == 2
    assert sum(table.skipped.values()) == 1


def test_augmentation_letters() -> None:
    """Personality, language data and unknown letters are skipped."""
    frame = EhFrame()
    frame.fde(frame.cie(augmentation=b"zPLR", augmentation_data=b"\x9b" + bytes(4) + b"\x1b\x1b"), 0x2000, 16)
    frame.fde(frame.cie(augmentation=b"zRBx", augmentation_data=b"\x1b" + bytes(9)), 0x3000, 16)

    table = build_table(frame.sections())

    assert [table.lookup(vaddr) for vaddr in (0x2000, 0x3000)] == [RSP_8] * 2


def test_an_fde_as_cie() -> None:
    """Pointers that go in circles lead nowhere."""
    frame = one_function(b"")
    first = len(frame.data)
    frame.fde(first, 0x2000, 16)
    second = len(frame.data)
    frame.fde(first, 0x3000, 16)
    frame.fde(second + 1_000_000, 0x4000, 16)

    table = build_table(frame.sections())

    assert table.skipped == {SkipReason.BAD_CIE: 3}


def test_a_length_that_leads_outside() -> None:
    """Entries before it are kept, those after it cannot be found."""
    frame = one_function(b"")
    frame.fde(0, 0x2000, 16, length=1 << 20)
    frame.fde(0, 0x3000, 16)

    table = build_table(frame.sections())

    assert table.skipped == {SkipReason.TRUNCATED: 1}
    assert table.fde_count == 1


def test_the_sorted_table_finds_what_is_behind_a_bad_length() -> None:
    """With .eh_frame_hdr each FDE stands for itself."""
    frame = one_function(b"")
    frame.fde(0, 0x2000, 16, length=1 << 20)
    frame.fde(0, 0x3000, 16)

    table = build_table(frame.sections(frame.hdr()))

    assert table.skipped == {SkipReason.TRUNCATED: 1}
    assert table.fde_count == 2


def test_terminators_in_the_middle() -> None:
    """`ld -r` leaves them there; the entries behind them count."""
    frame = one_function(b"")
    frame.data += bytes(12)
    frame.fde(frame.cie(), 0x2000, 16)
    frame.data += bytes(4)

    assert build_table(frame.sections()).fde_count == 2


@pytest.mark.parametrize("damage", ["version", "encoding", "cut", "count", "elsewhere", "empty"])
def test_an_unusable_sorted_table_is_not_used(damage: str) -> None:
    """Then the section is walked through."""
    frame = one_function(b"")
    frame.fde(0, 0x2000, 16)
    hdr = bytearray(frame.hdr())
    if damage == "version":
        hdr[0] = 2
    elif damage == "encoding":
        hdr[3] = 0x1B
    elif damage == "cut":
        hdr = hdr[:14]
    elif damage == "count":
        hdr = bytearray(frame.hdr(count=0))
    elif damage == "elsewhere":
        hdr[4] ^= 8
    else:
        hdr = bytearray(frame.hdr([(0, 1 << 28), (1, -(1 << 28))]))

    assert build_table(frame.sections(bytes(hdr))).fde_count == 2


def test_a_sorted_table_that_claims_more_than_it_has() -> None:
    """The count is bounded by the section."""
    frame = one_function(b"")

    assert build_table(frame.sections(frame.hdr(count=0xFFFF_FFFF))).fde_count == 1


def test_the_row_limit_keeps_the_first_functions() -> None:
    """Further ones are counted, and the table is valid."""
    frame = EhFrame()
    cie = frame.cie()
    for number in range(100):
        frame.fde(cie, 0x2000 + 32 * number, 16, ADVANCE_1 + def_cfa_offset(16))

    table = build_table(frame.sections(), max_rows=31)

    assert table.fde_count == 10
    assert table.skipped == {SkipReason.LIMIT: 90}
    assert len(table.rows) <= 31 + table.page_count
    check(table)


def test_entries_that_overlap_in_the_section_are_bounded() -> None:
    """A sorted table may point into the middle of entries; together they may not exceed the section."""
    frame = EhFrame()
    cie = frame.cie()
    offsets = []
    frame.fde(cie, 0x2000, 16)
    # Headers in a row, each of which claims all that follows it as its instructions.
    for number in range(200):
        offset = len(frame.data)
        offsets.append(offset)
        address = 0x2000 - (EH_FRAME_VADDR + offset + 8)
        frame.data += struct.pack("<IIiII", 16 + 20 * (199 - number), offset + 4 - cie, address, 16, 0)
    hdr = frame.hdr([(0x2000 + i, offset) for i, offset in enumerate(offsets)])

    with_limit = build_table(frame.sections(hdr))

    assert with_limit.skipped[SkipReason.LIMIT] > 190


@pytest.mark.parametrize(
    "sections",
    [
        FrameSections(None, TEXT_START, TEXT_END),
        FrameSections(None, TEXT_START, TEXT_END, eh_frame=bytes(1_000)),
        FrameSections(None, TEXT_START, TEXT_END, eh_frame=b"\xff" * 1_000, eh_frame_hdr=b"\xff" * 10),
        FrameSections(None, TEXT_START, TEXT_START, eh_frame=bytes(one_function(b"").data)),
        FrameSections(None, TEXT_START, 1 << 62, eh_frame=bytes(one_function(b"").data)),
        FrameSections(None, 0x7000_0000, 0x7000_1000, eh_frame=bytes(one_function(b"").data)),
    ],
    ids=["nothing", "zeroes", "ones", "no-text", "endless-text", "text-elsewhere"],
)
def test_nothing_to_build_a_table_from(sections: FrameSections) -> None:
    """`BadElf`, which the caller takes as "follow rbp here"."""
    with pytest.raises(BadElf):
        build_table(sections)


@pytest.mark.parametrize(
    ("encoding", "layout"),
    [(0x00, "<QQ"), (0x10, "<qQ"), (0x1C, "<qQ"), (0x12, "<HH"), (0x1A, "<hh"), (0x03, "<II"), (0x0B, "<iI")],
)
def test_addresses_of_every_usual_encoding(encoding: int, layout: str) -> None:
    """Absolute, and relative in other widths than the usual one."""
    frame = EhFrame()
    cie = frame.cie(augmentation_data=bytes((encoding,)))
    offset = len(frame.data)
    start = EH_FRAME_VADDR + 0x1000
    address = start - (EH_FRAME_VADDR + offset + 8 if encoding & 0x10 else 0)
    frame.entry(struct.pack("<I", offset + 4 - cie) + struct.pack(layout, address, 16) + b"\0")

    table = build_table(frame.sections(text_start=start, text_end=start + 0x1000))

    assert [table.lookup(start + offset) for offset in (0, 15, 16)] == [RSP_8, RSP_8, GAP]


def test_renumbering_for_the_kernel() -> None:
    """Rows keep their addresses; numbers are those of the rule set, shared by all files."""
    rule_set = RuleSet()
    rule_set.number_of(RSP_16)
    tables = [
        build_table(one_function(program).sections())
        for program in (b"", DEF_CFA_RBP_16 + RBP_AT_MINUS_16, def_cfa_offset(16))
    ]

    for table in tables:
        rows = table.rows_numbered_by(rule_set)
        rules = list(rule_set)
        assert rows.dtype == np.uint32
        assert np.array_equal(rows & ROW_ADDRESS_MASK, table.rows & ROW_ADDRESS_MASK)
        by_set = [rules[number] for number in (rows >> ROW_ADDRESS_BITS).tolist()]
        assert by_set == [table.rules[number] for number in (table.rows >> ROW_ADDRESS_BITS).tolist()]
    assert len(rule_set) == 3 + 3


def test_tables_cannot_be_changed() -> None:
    """They are shared between threads and processes of the daemon."""
    table = build_table(one_function(b"").sections())

    with pytest.raises(ValueError, match="read-only"):
        table.rows[0] = 0


@pytest.mark.parametrize(
    "broken",
    [
        {"rows": np.array([], np.uint32)},
        {"rows": np.array([0, 0], np.int64)},
        {"text_start": 8},
        {"page_index": np.array([0], np.uint32)},
        {"page_index": np.arange(8, dtype=np.uint32)},
        {"rules": (GAP, STOP)},
        {"rules": (GAP, STOP, END)},
    ],
    ids=str,
)
def test_check_finds_what_is_broken(broken: dict) -> None:
    """The rules that BPF relies on are verified one by one."""
    table = build_table(one_function(b"").sections())

    with pytest.raises(ValueError, match=r"\w"):
        check(replace(table, **broken))


def test_check_finds_rows_out_of_order() -> None:
    """Within a page; each page restarts its addresses."""
    table = build_table(one_function(ADVANCE_1 + def_cfa_offset(16)).sections())
    rows = table.rows.copy()
    rows[1], rows[2] = rows[2], rows[1]

    with pytest.raises(ValueError, match="ascend"):
        check(replace(table, rows=rows))


def test_debug_frame_fills_gaps_only() -> None:
    """An FDE of .debug_frame that overlaps one of .eh_frame is omitted, and not counted as a loss."""
    frame = EhFrame()
    frame.fde(frame.cie(), 0x2000, 16)
    cie = struct.pack("<IB", 0xFFFF_FFFF, 3) + b"\0" + bytes((1, 0x78, 16)) + USUAL_CIE
    debug = struct.pack("<I", len(cie)) + cie
    for start, size_bytes in ((0x2008, 16), (0x2018, 8), (0x1FF0, 17), (0x1FE0, 16)):
        body = struct.pack("<IQQ", 0, start, size_bytes) + def_cfa_offset(16)
        debug += struct.pack("<I", len(body)) + body

    table = build_table(replace(frame.sections(), debug_frame=debug))

    lookups = {0x1FE0: RSP_16, 0x1FF0: GAP, 0x2000: RSP_8, 0x2010: GAP, 0x2018: RSP_16, 0x2020: GAP}
    assert {vaddr: table.lookup(vaddr) for vaddr in lookups} == lookups
    assert not table.skipped
