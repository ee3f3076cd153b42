"""Versions, functions and lines of files that Go made: the tools of the Go that is installed."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.runtimes.go.variables import find_variables
from bpfleakd.symbols.go.code import (
    FIRST_RELEASE,
    LAST_RELEASE,
    go_lines,
    layout_of,
    read_build_info,
    read_go_code,
)
from bpfleakd.symbols.go.line_table import pclntab_section

_FLAGS = {
    "plain": [],
    "stripped": ["-ldflags=-s -w"],
    "pie": ["-buildmode=pie", "-ldflags=-s -w"],
    # As with cgo: the C linker puts all that is read-only after relocation into one section.
    "pie-gcc": ["-buildmode=pie", "-ldflags=-s -w -linkmode=external"],
}
_SOURCE = Path(__file__).parents[3] / "workloads" / "go"


@lru_cache
def built(kind: str) -> Path:
    """A small program, built in one of several ways. Skips without Go."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    program = Path(__file__).parents[4] / "build" / "workloads" / "go-unit" / kind
    program.parent.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-o", str(program), *_FLAGS[kind], "./unprofiled"]
    subprocess.run(command, cwd=_SOURCE, check=True, capture_output=True)
    return program


@pytest.fixture(params=_FLAGS)
def image(request: pytest.FixtureRequest) -> ElfImage:
    with ElfImage.open(built(request.param)) as image:
        yield image


def test_the_version(image: ElfImage) -> None:
    """As `go version FILE` says it."""
    said = subprocess.run(["go", "version", image.name], check=True, capture_output=True, text=True).stdout
    info = read_build_info(image)
    assert info is not None
    assert info.version == said.split()[1]
    assert info.release is not None
    assert FIRST_RELEASE <= info.release <= LAST_RELEASE


def test_functions_lines_and_inlined_calls(image: ElfImage) -> None:
    """A function by its name, and every line of it by its addresses, whatever was stripped."""
    table = read_go_code(image).table
    function = table.named({"main.main"})["main.main"]
    assert table.find(function.entry) == function
    methods = [table.frames(vaddr) for vaddr in range(function.entry, function.end)]
    # Since 1.24 what fills the space before the next function has no line.
    while methods[-1][-1].file is None:
        methods.pop()
    assert all(frames[-1].name == "main.main" for frames in methods)
    lines = {frames[-1].line for frames in methods}
    source = (_SOURCE / "unprofiled" / "main.go").read_text().split("\n")
    calls = {number for number, text in enumerate(source, 1) if "remember()" in text and "func" not in text}
    assert calls <= lines
    assert all(frames[-1].file.endswith("unprofiled/main.go") for frames in methods)
    inlined = {frames[0].name for frames in methods if len(frames) > 1}
    assert "fmt.Println" in inlined
    assert {table.logical_frame(vaddr).name for vaddr in range(function.entry, function.end)} >= inlined


def test_the_variables_are_where_the_symbols_say() -> None:
    """Found by the code of the runtime alone; a program with symbols says whether that is right."""
    with ElfImage.open(built("plain")) as image:
        code = read_go_code(image)
        found = find_variables(image, code.table, code.module)
    symbols = _objects(built("plain"))
    assert found.buckets == symbols["runtime.mbuckets"]
    assert found.cycle == symbols["runtime.mProfCycle"]
    assert found.rate == symbols["runtime.MemProfileRate"]
    assert found.goroutines == symbols["runtime.allgptr"]
    assert found.goroutine_count == symbols["runtime.allglen"]
    assert found.wait_reasons == symbols["runtime.waitReasonStrings"]
    assert symbols["runtime.gcController"] in found.pacers


def test_a_version_that_is_not_known(tmp_path: Path) -> None:
    """The error has the version, and the known ones."""
    data = bytearray(built("plain").read_bytes())
    with ElfImage.open(built("plain")) as image:
        info, section = read_build_info(image), image.section(".go.buildinfo")
    assert info is not None
    assert section is not None
    at = data.index(info.version.encode(), section.file_offset)
    data[at : at + len(info.version)] = b"go1.99".ljust(len(info.version), b"x")
    with pytest.raises(BadElf, match=r"go1\.99x*; supported is Go 1\.18 to 1\.27"):
        read_go_code(ElfImage.from_bytes(bytes(data), "later"))
    assert go_lines(ElfImage.from_bytes(bytes(data), "later")) is None


def test_a_file_that_go_did_not_make() -> None:
    """It has no names of Go, and no version."""
    with ElfImage.open(sys.executable) as image:
        assert go_lines(image) is None
        assert read_build_info(image) is None


@pytest.mark.parametrize(
    ("release", "counters", "stack_max"),
    [
        ((1, 18), 4, 32),
        ((1, 19), 4, 32),
        ((1, 22), 4, 32),
        ((1, 23), 4, 128),
        ((1, 26), 4, 128),
        ((1, 27), 2, 128),
    ],
)
def test_layouts(release: tuple[int, int], counters: int, stack_max: int) -> None:
    """As the sources of these releases have it."""
    layout = layout_of(release)
    assert layout is not None
    assert (layout.counters, layout.stack_max) == (counters, stack_max)


@pytest.mark.parametrize("release", [(1, 4), (1, 17), (1, 28), (2, 0)])
def test_other_releases_are_not_guessed(release: tuple[int, int]) -> None:
    """A structure that changed would be misread."""
    assert layout_of(release) is None


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_table(data: st.DataObject) -> None:
    """Files are hostile: a table of any bytes gives names or BadElf, and ends."""
    original = built("stripped").read_bytes()
    with ElfImage.open(built("stripped")) as image:
        section = pclntab_section(image)
    changed = bytearray(original)
    for _ in range(data.draw(st.integers(1, 8))):
        reach = data.draw(st.sampled_from([64, 4096, section.size_bytes]))
        at = section.file_offset + data.draw(st.integers(0, min(reach, section.size_bytes) - 8))
        changed[at : at + 8] = struct.pack("<Q", data.draw(st.integers(0, (1 << 64) - 1)))
    image = ElfImage.from_bytes(bytes(changed), "hostile")
    table = go_lines(image)
    if table is None:
        return
    for vaddr in range(table.start, min(table.end, table.start + (1 << 20)), 4099):
        table.frames(vaddr)
    table.named({"main.main"})


def _objects(path: Path) -> dict[str, int]:
    """Symbols of variables, by readelf."""
    text = subprocess.run(["readelf", "-sW", path], check=True, capture_output=True, text=True).stdout
    rows = (line.split() for line in text.split("\n"))
    return {row[7]: int(row[1], 16) for row in rows if len(row) == 8 and row[3] == "OBJECT"}
