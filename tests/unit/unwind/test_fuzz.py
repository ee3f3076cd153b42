"""Damaged and random call frame information: a valid table or `BadElf`, and nothing else."""

from __future__ import annotations

import random
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.unwind.build import FrameSections, build_table, sections_of
from bpfleakd.unwind.table import UnwindTable, check

from .hand_made import TEXT_START, EhFrame
from .readelf import expected_rules, fdes_of, need_tool

MAX_ROWS = 5_000


@cache
def loader_sections() -> FrameSections:
    """The dynamic loader's: small, but with expressions, signal frames and hand-written assembly."""
    with ElfImage.open("/lib64/ld-linux-x86-64.so.2") as image:
        return sections_of(image)


def build(sections: FrameSections) -> UnwindTable | None:
    try:
        table = build_table(sections, MAX_ROWS)
    except BadElf:
        return None
    check(table)
    assert len(table.rows) <= MAX_ROWS + table.page_count
    return table


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """Some bytes changed, a piece moved, the end cut off."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 20))):
        position = draw(st.integers(0, len(data) - 1))
        data[position] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
    if draw(st.booleans()):
        start, end, to = (draw(st.integers(0, len(data))) for _ in range(3))
        data[to:to] = data[start:end][:200]
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_eh_frame(data: st.DataObject) -> None:
    """With and without the sorted table, which may be damaged itself."""
    sections = loader_sections()
    eh_frame = data.draw(damaged(bytes(sections.eh_frame)))
    hdr = data.draw(
        st.sampled_from((b"", bytes(sections.eh_frame_hdr))) | damaged(bytes(sections.eh_frame_hdr))
    )

    build(replace(sections, eh_frame=eh_frame, eh_frame_hdr=hdr))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_bytes_as_debug_frame(data: st.DataObject) -> None:
    """The other format, read from bytes that were meant as the one."""
    sections = loader_sections()

    build(replace(sections, debug_frame=data.draw(damaged(bytes(sections.eh_frame)))))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=100), st.integers(0, 1 << 64), st.integers(-1, 1 << 20))
def test_random_sections(eh_frame: bytes, hdr: bytes, text_start: int, text_bytes: int) -> None:
    """Bytes that never were call frame information, at any address."""
    build(FrameSections(None, text_start, text_start + text_bytes, eh_frame, 0, hdr, 0, eh_frame))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8), st.binary(max_size=30))
def test_random_instructions(programs: list[bytes], cie_instructions: bytes) -> None:
    """Whatever the instructions are, every FDE covers its function and no more."""
    frame = EhFrame()
    cie = frame.cie(cie_instructions)
    for number, program in enumerate(programs):
        frame.fde(cie, TEXT_START + 64 * number, 32, program)

    table = build(frame.sections())

    if table is not None:
        assert table.fde_count == len(programs)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_same_bytes_give_the_same_table(data: st.DataObject) -> None:
    """However often they are read."""
    sections = replace(loader_sections(), eh_frame=data.draw(damaged(bytes(loader_sections().eh_frame))))

    first, second = build(sections), build(sections)

    if first is not None:
        assert first.rows.tobytes() == second.rows.tobytes()
        assert first.page_index.tobytes() == second.page_index.tobytes()
        assert (first.rules, first.skipped) == (second.rules, second.skipped)


SIZE_BYTES = 200
CFA_INSTRUCTIONS = "0c0710 0c0610 0c0720 0c0a08 0d06 0d07 0e18 0e8001 12077d 137e 0f057710062308 0f03765006"
SAVING_INSTRUCTIONS = "8602 8603 9001 8305 050604 11067e 2f0605 9002 8702 09060c 140601 15067f 1006027678"
OTHER_INSTRUCTIONS = "c6 c3 c7 0606 0610 0806 1606027708 2e05"
INSTRUCTIONS = [
    bytes.fromhex(instruction)
    for group in (CFA_INSTRUCTIONS, SAVING_INSTRUCTIONS, OTHER_INSTRUCTIONS)
    for instruction in group.split()
]


def random_program(chance: random.Random) -> bytes:
    """Return instructions that are valid, and seldom sensible."""
    program, depth = [], 0
    for _ in range(chance.randrange(1, 25)):
        what = chance.random()
        if what < 0.35:
            program.append(bytes((0x40 | chance.randrange(1, 9),)))
        elif what < 0.4:
            program.append(bytes((0x02, chance.randrange(1, 40))))
        elif what < 0.47:
            program.append(b"\x0a")
            depth += 1
        elif what < 0.55 and depth:
            program.append(b"\x0b")
            depth -= 1
        else:
            program.append(chance.choice(INSTRUCTIONS))
    return b"".join(program)


@pytest.mark.parametrize("seed", range(3))
def test_random_programs_mean_what_readelf_says(tmp_path: Path, seed: int) -> None:
    """Valid instructions in combinations that no compiler writes, 400 functions at a time."""
    chance = random.Random(seed)
    lines = [".text", ".globl _start", "_start:"]
    for _ in range(400):
        escape = ", ".join(map(hex, random_program(chance)))
        lines += [".cfi_startproc", f".cfi_escape {escape}", f".skip {SIZE_BYTES}", ".cfi_endproc"]
    source, path = tmp_path / "random.S", tmp_path / "random"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run([need_tool("gcc"), "-nostdlib", "-static", "-o", path, source], check=True)
    with ElfImage.open(path) as image:
        table = build(sections_of(image))

    compared = 0
    for fde in fdes_of(path):
        for row, end in zip(fde.rows, [r.address for r in fde.rows[1:]] + [fde.end], strict=True):
            if row.address < min(end, fde.end):
                assert table.lookup(row.address) in expected_rules(fde, row), row
                compared += 1
    print(f"{compared} rows")
    assert compared > 1_500
    assert not table.skipped
