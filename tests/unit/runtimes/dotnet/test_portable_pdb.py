"""Portable PDBs that .NET's own library wrote, whole and damaged, and the lines that helpers make of them."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.runtimes.dotnet.assembly import debug_directory
from bpfleakd.runtimes.dotnet.line_jobs import LINES_JOB, POINT, MethodLines
from bpfleakd.runtimes.dotnet.method_look import Methods
from bpfleakd.runtimes.dotnet.methods import MethodTable
from bpfleakd.runtimes.dotnet.portable_pdb import BadDebugInformation, PortablePdb
from bpfleakd.runtimes.dotnet.source_lines import PdbLines
from bpfleakd.runtimes.dotnet.stream_jobs import CodePart
from bpfleakd.sandbox.channel import HelperFailed

from ...helping import helpers
from .recorded_pdb import ASSEMBLY, PDB, POINTS

KEEP, MAIN = 0x06000001, 0x06000002
MODULE = 7


def points_of(data: bytes) -> list[tuple[int, int, str, int]]:
    pdb = PortablePdb(data)
    return [
        (token, point.il_offset, pdb.document(point.document), point.line)
        for token in (KEEP, MAIN)
        for point in pdb.points(token)
    ]


def code(token: int, il_map: Sequence[tuple[int, int]] = (), start: int = 0x1000) -> CodePart:
    packed = b"".join(struct.pack("<II", *pair) for pair in il_map)
    return CodePart(token, MODULE, start, 0x100, token, "Shop.Book", "Keep", True, packed)


def test_points_are_those_that_the_runtime_reads() -> None:
    """From a separate file, and from one in an assembly, identified by the assembly's id."""
    assert points_of(PDB) == POINTS
    directory = debug_directory(ASSEMBLY)
    assert directory.embedded is not None
    assert points_of(directory.embedded) == POINTS
    assert PortablePdb(directory.embedded).id == directory.pdb_id


def test_what_is_no_method() -> None:
    """A token of something else, or beyond the last."""
    assert [PortablePdb(PDB).points(token) for token in (0, 0x0A000001, 0x06000000, 0x06000003)] == [[]] * 4


@pytest.mark.parametrize("data", [b"", b"BSJB", PDB[:200], b"\x7fELF" + bytes(1_000)])
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(BadDebugInformation):
        points_of(data)


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 6))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xC0, 0xFF)))
    return bytes(data[: draw(st.integers(1, len(data)))] if draw(st.booleans()) else data)


@settings(max_examples=400)
@given(damaged(PDB), damaged(ASSEMBLY))
def test_damaged_files(pdb: bytes, assembly: bytes) -> None:
    """One error, and nothing else."""
    with contextlib.suppress(BadDebugInformation):
        points_of(pdb)
    with contextlib.suppress(BadDebugInformation):
        debug_directory(assembly)


@settings(max_examples=25)
@given(damaged(ASSEMBLY), st.binary(max_size=24))
def test_damaged_files_in_helpers(assembly: bytes, il_map: bytes) -> None:
    """Packed points, or no answer."""
    file = os.memfd_create("damaged", os.MFD_CLOEXEC)
    try:
        os.write(file, assembly)
        arguments = [(KEEP, il_map), (MAIN, b"")]
        with contextlib.suppress(HelperFailed):
            for answer in helpers().answers(LINES_JOB, arguments, [file], MethodLines, limit_s=20):
                assert len(answer.points) == 2
                assert all(len(points) % POINT.size == 0 for points in answer.points)
    finally:
        os.close(file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with the assembly."""
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv" / "Shop.dll").write_bytes(ASSEMBLY)
    return tmp_path


def test_lines_of_native_code(root: Path) -> None:
    """By the map of the code; without one, as of code compiled ahead of time, the method's first line."""
    keep = code(KEEP, [(4, 0), (27, 11), (50, 23)])
    main = code(MAIN, start=0x2000)
    methods = Methods([keep, main, code(0x06000003, start=0x3000)], {MODULE: "/srv/Shop.dll"})
    lines = PdbLines(helpers(), TargetRoot(os.getpid(), root))(methods)
    assert lines == {
        0: ((4, "Ledger.cs", 12), (27, "Generated.cs", 17), (50, "Ledger.cs", 14)),
        1: ((0, "Ledger.cs", 39),),
    }
    table = MethodTable()
    table.add(methods)
    assert [one.line for one in table.find(0x1000)] == [None]
    table.add_lines(methods, lines)
    found = {at: [(one.file, one.line) for one in table.find(at)] for at in (0x1000, 0x101A, 0x101B, 0x20FF)}
    assert found == {
        0x1000: [("Ledger.cs", 12)],
        0x101A: [("Ledger.cs", 12)],
        0x101B: [("Generated.cs", 17)],
        0x20FF: [("Ledger.cs", 39)],
    }


@pytest.mark.parametrize("path", ["/srv/Gone.dll", "Dynamic", "/usr/shared/Microsoft.NETCore.App/3.1/A.dll"])
def test_modules_without_lines(root: Path, path: str) -> None:
    assert PdbLines(helpers(), TargetRoot(os.getpid(), root))(Methods([code(KEEP)], {MODULE: path})) == {}


def test_files_that_are_no_assembly(root: Path) -> None:
    """A pipe is not opened, and what cannot be read gives no lines."""
    (root / "srv" / "Shop.dll").write_bytes(b"MZ" + bytes(500))
    os.mkfifo(root / "srv" / "Pipe.dll")
    for path in ("/srv/Shop.dll", "/srv/Pipe.dll"):
        assert PdbLines(helpers(), TargetRoot(os.getpid(), root))(Methods([code(KEEP)], {MODULE: path})) == {}
