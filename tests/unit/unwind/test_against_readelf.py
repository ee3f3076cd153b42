"""Every row of real files and of compiled ones must be what readelf says, address by address."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bpfleakd.elf.image import ElfImage
from bpfleakd.unwind.build import table_of
from bpfleakd.unwind.rules import GAP, STOP, CfaKind, RbpKind, UnwindRule
from bpfleakd.unwind.table import UnwindTable, check

from .compiling import Program, compiled
from .readelf import ReadelfFde, expected_rules, fdes_of, need_tool

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
SYSTEM_FILES = [
    f"{LIBRARIES}/libc.so.6",
    "/lib64/ld-linux-x86-64.so.2",
    f"{LIBRARIES}/libstdc++.so.6",
    f"{LIBRARIES}/libgcc_s.so.1",
    f"{LIBRARIES}/libm.so.6",
    f"{LIBRARIES}/libcrypto.so.3",
    f"{LIBRARIES}/libssl.so.3",
    os.path.realpath("/usr/bin/python3"),
    "/usr/bin/gdb",
]


def table_at(path: Path) -> UnwindTable:
    with ElfImage.open(path) as image:
        table = table_of(image)
    check(table)
    return table


def compare(table: UnwindTable, fdes: list[ReadelfFde]) -> Counter[CfaKind]:
    """Fail on the first row that differs; return how many were compared, by kind."""
    compared: Counter[CfaKind] = Counter()
    for fde in fdes:
        ends = [row.address for row in fde.rows[1:]] + [fde.end]
        for row, end in zip(fde.rows, ends, strict=True):
            if row.address >= min(end, fde.end):
                continue
            expected = expected_rules(fde, row)
            for vaddr in {row.address, min(end, fde.end) - 1}:
                rule = table.lookup(vaddr)
                assert rule in expected, f"{fde.section} {fde.offset:#x}, at {vaddr:#x}: {row.cells}"
            compared[rule.cfa] += 1
    return compared


def expect_gaps(table: UnwindTable, fdes: list[ReadelfFde]) -> None:
    """Fail where the table has a rule that no FDE gave it."""
    covered = sorted((fde.start, fde.end) for fde in fdes if fde.end > fde.start)
    reached = table.text_start
    for start, end in [*covered, (table.text_end, table.text_end)]:
        if start > reached:
            assert table.lookup(reached) == GAP
            assert table.lookup(start - 1) == GAP
        reached = max(reached, end)


def expect_same(path: Path) -> Counter[CfaKind]:
    table, fdes = table_at(path), fdes_of(path)
    compared = compare(table, fdes)
    expect_gaps(table, fdes)
    assert table.fde_count == sum(fde.end > fde.start for fde in fdes)
    assert not table.skipped
    print(f"{path}: {sum(compared.values())} rows of {len(fdes)} FDEs, {dict(compared)}")
    return compared


@pytest.mark.parametrize("path", SYSTEM_FILES)
def test_system_files(path: str) -> None:
    """The libraries that nearly every process maps, and a large program."""
    if not Path(path).exists():
        pytest.skip(f"{path} is not installed")

    compared = expect_same(Path(path))

    assert sum(compared.values()) > 1_000
    if path.endswith("libc.so.6"):
        assert compared[CfaKind.SIGNAL]
        assert compared[CfaKind.PLT]
        assert compared[CfaKind.END]


@pytest.mark.parametrize(
    "options",
    [
        ("-O0",),
        ("-O2",),
        ("-O2", "-fomit-frame-pointer", "-fno-pie", "-no-pie"),
        ("-O2", "-fno-omit-frame-pointer"),
        ("-O2", "-mavx2"),
        ("-O3", "-static"),
        ("-Os", "-fcf-protection=full", "-Wl,-z,ibtplt", "-Wl,-z,lazy"),
        ("-O2", "-Wl,-z,now"),
    ],
    ids=" ".join,
)
def test_compiled_c(tmp_path: Path, options: tuple[str, ...]) -> None:
    """alloca, variable arrays, realigned stacks, a signal handler and callbacks, in many flavours."""
    compared = expect_same(compiled(Program.FRAMES, tmp_path, *options))

    assert compared[CfaKind.RSP] > 30
    if "-O2" in options:
        assert compared[CfaKind.DEREF_RBP]


@pytest.mark.parametrize("options", [("-O2",), ("-O0",), ("-O2", "-static")], ids=" ".join)
def test_compiled_cxx(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Exceptions bring CIEs with personality routines, FDEs with language data, and cold parts."""
    expect_same(compiled(Program.EXCEPTIONS, tmp_path, *options))


@pytest.mark.parametrize("linker", ["bfd", "gold", "lld", "mold"])
def test_linkers(tmp_path: Path, linker: str) -> None:
    """Linkers write .eh_frame and the lazy PLT differently."""
    need_tool(f"ld.{linker}")

    expect_same(compiled(Program.FRAMES, tmp_path, "-O2", f"-fuse-ld={linker}", "-Wl,-z,lazy"))


WITHOUT_EH_FRAME = ("-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")


@pytest.mark.parametrize("options", [(), ("-gdwarf64",), ("-gdwarf-2",), ("-gz",)], ids=str)
def test_debug_frame_where_eh_frame_is_missing(tmp_path: Path, options: tuple[str, ...]) -> None:
    """.debug_frame covers the program itself, .eh_frame the start code and the PLT."""
    path = compiled(Program.FRAMES, tmp_path, *WITHOUT_EH_FRAME, *options)

    fdes = fdes_of(path)
    assert {fde.section for fde in fdes} == {".eh_frame", ".debug_frame"}
    compared = expect_same(path)

    assert compared[CfaKind.DEREF_RBP]


def test_eh_frame_has_precedence_over_debug_frame(tmp_path: Path) -> None:
    """A file with both gets one set of rows, and nothing is counted as overlapping."""
    path = compiled(Program.FRAMES, tmp_path, "-O2", "-g", "-Wa,--gdwarf-5")
    with ElfImage.open(path) as image:
        assert image.section(".eh_frame")
        without = table_of(image)
    both = tmp_path / "both"
    frame = tmp_path / "frame"
    other = compiled(Program.FRAMES, tmp_path / "other", *WITHOUT_EH_FRAME)
    subprocess.run([need_tool("objcopy"), "--dump-section", f".debug_frame={frame}", other], check=True)
    subprocess.run([need_tool("objcopy"), "--add-section", f".debug_frame={frame}", path, both], check=True)

    table = table_at(both)

    compare(table, [fde for fde in fdes_of(both) if fde.section == ".eh_frame"])
    assert table.fde_count >= without.fde_count
    assert not table.skipped


def test_neither_section(tmp_path: Path) -> None:
    """Code that only the start code describes is a gap."""
    path = compiled(Program.FRAMES, tmp_path, *WITHOUT_EH_FRAME, "-g0")

    expect_same(path)


@pytest.mark.parametrize("how", ["linker", "objcopy"])
def test_without_eh_frame_hdr(tmp_path: Path, how: str) -> None:
    """Without a sorted index, the section is read sequentially."""
    if how == "linker":
        path = compiled(Program.FRAMES, tmp_path, "-O2", "-Wl,--no-eh-frame-hdr")
    else:
        original = compiled(Program.FRAMES, tmp_path, "-O2")
        path = tmp_path / "without-hdr"
        command = [need_tool("objcopy"), "--remove-section", ".eh_frame_hdr", original, path]
        subprocess.run(command, check=True)
    with ElfImage.open(path) as image:
        assert image.section(".eh_frame_hdr") is None

    expect_same(path)


def test_both_orders_give_the_same_table(tmp_path: Path) -> None:
    """Whether FDEs are found by the sorted table or by walking makes no difference."""
    original = Path(f"{LIBRARIES}/libc.so.6")
    path = tmp_path / "libc.so.6"
    subprocess.run([need_tool("objcopy"), "--remove-section", ".eh_frame_hdr", original, path], check=True)

    with_hdr, without = table_at(original), table_at(path)

    addresses = range(with_hdr.text_start, with_hdr.text_end, 61)
    assert all(with_hdr.lookup(vaddr) == without.lookup(vaddr) for vaddr in addresses)
    assert len(with_hdr.rows) == len(without.rows)


def test_lazy_plt_of_a_linker_with_another_layout(tmp_path: Path) -> None:
    """The PLT of `-z ibtplt` pushes elsewhere in its entries than the usual one."""
    usual = table_at(compiled(Program.FRAMES, tmp_path, "-O2", "-Wl,-z,lazy"))
    with_ibt = table_at(compiled(Program.FRAMES, tmp_path / "ibt", "-O2", "-Wl,-z,lazy,-z,ibtplt"))

    thresholds = [
        {rule.cfa_addend for rule in table.rules if rule.cfa is CfaKind.PLT} for table in (usual, with_ibt)
    ]

    assert thresholds[0] == {11}
    assert all(thresholds)


def test_hand_written_information(tmp_path: Path) -> None:
    """Assembly with every directive that compilers hardly use."""
    path = compiled(Program.DIRECTIVES, tmp_path, "-nostdlib", "-static")

    table, fdes = table_at(path), fdes_of(path)
    rules = set(itertools.chain.from_iterable(expected_rules(f, row) for f in fdes for row in f.rows))
    compare(table, fdes)

    assert STOP in rules
    assert {rule.rbp for rule in rules} >= {RbpKind.SAME, RbpKind.AT_CFA, RbpKind.AT_RBP, RbpKind.UNDEFINED}
    assert UnwindRule(CfaKind.DEREF_RSP, 16, 24) in rules
