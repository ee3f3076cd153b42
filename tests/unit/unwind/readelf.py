"""The independent truth: call frame information as binutils' readelf interprets it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bpfleakd.unwind.rules import END, STOP, CfaKind, RbpKind, UnwindRule

_SECTION = re.compile(r"^Contents of the (\.\w+) section")
_ENTRY = re.compile(r"^([0-9a-f]{8,}) [0-9a-f]{16} [0-9a-f]+ (CIE|FDE)(.*)")
_FDE = re.compile(r"cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_CELL = re.compile(r"\S+(?: \(\w+\))?")
_EXPRESSION = re.compile(r"DW_CFA_(def_cfa_expression|expression: r\d+ \((\w+)\)) \((.*)\)$")
_BREG = r"DW_OP_breg\d+ \((\w+)\): (-?\d+)"


@dataclass(frozen=True)
class ReadelfRow:
    """One line: `cells` by the column's title (CFA, rbp, ra, ...) in readelf's own words."""

    address: int
    cells: dict[str, str]


@dataclass
class ReadelfFde:
    """One FDE of `section`. `expressions` are those in its instructions, by what they define."""

    section: str
    offset: int
    start: int
    end: int
    is_signal_frame: bool
    rows: list[ReadelfRow] = field(default_factory=list)
    expressions: dict[str, list[str]] = field(default_factory=dict)


def need_tool(name: str) -> str:
    """Return the path of a program, or skip the test saying which package brings it."""
    found = shutil.which(name)
    if found is None:
        packages = {"readelf": "binutils", "objcopy": "binutils", "ld.lld": "lld", "ld.mold": "mold"}
        pytest.skip(f"needs {name}: apt-get install {packages.get(name, name)}")
    return found


def fdes_of(path: Path) -> list[ReadelfFde]:
    """Return every FDE of a file's .eh_frame and .debug_frame, as readelf prints them."""
    fdes = {(fde.section, fde.offset): fde for fde in _interpreted(path)}
    for key, what, expression in _expressions(path):
        if key in fdes:
            fdes[key].expressions.setdefault(what, []).append(expression)
    return list(fdes.values())


def _dump(path: Path, kind: str) -> Iterator[str]:
    command = [need_tool("readelf"), "--wide", f"--debug-dump={kind},no-follow-links", str(path)]
    output = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    return iter(output.stdout.splitlines())


def _interpreted(path: Path) -> Iterator[ReadelfFde]:
    section, cies, titles, fde, cie_offset = "", {}, [], None, None
    for line in _dump(path, "frames-interp"):
        if match := _SECTION.match(line):
            section = match[1]
        elif match := _ENTRY.match(line):
            fde, cie_offset = None, None
            if match[2] == "CIE":
                cie_offset = int(match[1], 16)
                cies[section, cie_offset] = ("S" in line.split('"')[1], None)
                continue
            cie, start, end = (int(number, 16) for number in _FDE.search(match[3]).groups())
            is_signal_frame, cells = cies[section, cie]
            fde = ReadelfFde(section, int(match[1], 16), start, end, is_signal_frame)
            if cells is not None:
                # Applies where the FDE has no rows.
                fde.rows = [ReadelfRow(start, cells)]
            yield fde
        elif line.strip().startswith("LOC"):
            titles = line.split()[1:]
            if fde is not None:
                fde.rows = []
        elif line.strip():
            address, *rest = _CELL.findall(line)
            if not re.fullmatch("[0-9a-f]{16}", address):
                continue
            cells = dict(zip(titles, rest, strict=True))
            if fde is not None:
                fde.rows.append(ReadelfRow(int(address, 16), cells))
            elif cie_offset is not None:
                cies[section, cie_offset] = (cies[section, cie_offset][0], cells)


def _expressions(path: Path) -> Iterator[tuple[tuple[str, int], str, str]]:
    section, offset = "", 0
    for line in _dump(path, "frames"):
        if match := _SECTION.match(line):
            section = match[1]
        elif match := _ENTRY.match(line):
            offset = int(match[1], 16)
        elif match := _EXPRESSION.search(line):
            yield (section, offset), match[2] or "CFA", match[3]


def expected_rules(fde: ReadelfFde, row: ReadelfRow) -> set[UnwindRule]:
    """Return the rules that readelf's row allows.

    One, except that where an FDE has several expressions readelf does not say which of them is in force.
    """
    ra = row.cells["ra"]
    if ra == "u":
        return {END}
    if fde.is_signal_frame:
        return {_signal_rule(fde)}
    if ra != "c-8" or row.cells.get("rsp", "u") != "u":
        return {STOP}
    cfas = _cfas(fde, row.cells["CFA"])
    rbps = _rbps(fde, row.cells.get("rbp", "u"))
    return {STOP if cfa is None else UnwindRule(*cfa, *rbp) for cfa in cfas for rbp in rbps}


def _cfas(fde: ReadelfFde, cell: str) -> list[tuple[CfaKind, int, int] | None]:
    if cell == "exp":
        return [_cfa_of_expression(expression) for expression in fde.expressions["CFA"]]
    register, offset = re.fullmatch(r"(\w+)([+-]\d+)", cell).groups()
    kinds = {"rsp": CfaKind.RSP, "rbp": CfaKind.RBP}
    return [(kinds[register], int(offset), 0) if register in kinds else None]


def _cfa_of_expression(expression: str) -> tuple[CfaKind, int, int] | None:
    if match := re.fullmatch(_BREG + r"; DW_OP_deref(?:; DW_OP_plus_uconst: (\d+))?", expression):
        kinds = {"rsp": CfaKind.DEREF_RSP, "rbp": CfaKind.DEREF_RBP}
        return (kinds[match[1]], int(match[2]), int(match[3] or 0)) if match[1] in kinds else None
    plt = _BREG + r"; DW_OP_breg16 \(rip\): 0; DW_OP_lit15; DW_OP_and; DW_OP_lit(\d+); DW_OP_ge; "
    if match := re.fullmatch(plt + "DW_OP_lit3; DW_OP_shl; DW_OP_plus", expression):
        return CfaKind.PLT, int(match[2]), int(match[3])
    return None


def _rbps(fde: ReadelfFde, cell: str) -> list[tuple[RbpKind, int]]:
    if cell in ("u", "s"):
        return [(RbpKind.SAME, 0)]
    if match := re.fullmatch(r"c([+-]\d+)", cell):
        return [(RbpKind.AT_CFA, int(match[1]))]
    if cell == "exp":
        return [_rbp_of_expression(expression) for expression in fde.expressions["rbp"]]
    return [(RbpKind.UNDEFINED, 0)]


def _rbp_of_expression(expression: str) -> tuple[RbpKind, int]:
    match = re.fullmatch(_BREG, expression)
    if match and match[1] == "rbp":
        return RbpKind.AT_RBP, int(match[2])
    return RbpKind.UNDEFINED, 0


def _signal_rule(fde: ReadelfFde) -> UnwindRule:
    offsets = {what: re.match(_BREG, found[0]) for what, found in fde.expressions.items()}
    if set(offsets) >= {"CFA", "rip", "rbp"} and all(match[1] == "rsp" for match in offsets.values()):
        rsp_offset, rip_offset, rbp_offset = (int(offsets[what][2]) for what in ("CFA", "rip", "rbp"))
        return UnwindRule(CfaKind.SIGNAL, rsp_offset, rip_offset, RbpKind.AT_RSP, rbp_offset)
    return STOP
