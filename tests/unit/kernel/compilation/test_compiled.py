"""Compiled programs as values, and the files that keep them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from bpfleakd.kernel.compilation.compiled import CompileCache, CompiledMap, CompiledPrograms, with_descriptors

# A wide load of map 1 into r1, a wide load of the number 7, of map 0 into r2, and an exit.
CODE = b"".join(
    struct.pack("=BBhi", *fields)
    for fields in (
        (0x18, 0x11, 0, 1),
        (0, 0, 0, 0),
        (0x18, 0x03, 0, 7),
        (0, 0, 0, 0x18),
        (0x18, 0x12, 0, 0),
        (0, 0, 0, 0),
        (0x95, 0, 0, 0),
    )
)
PROGRAMS = CompiledPrograms(
    (
        CompiledMap("live_template", 1, 8, 32, 1, 1, None),
        CompiledMap("live", 13, 4, 4, 512, 0, "live_template"),
    ),
    {"heap_session": CODE, "thread_exit": CODE[-8:]},
)


def immediates(code: bytes) -> list[int]:
    return [immediate for *_, immediate in struct.iter_unpack("=BBhi", code)]


def test_maps_are_named_by_their_descriptors():
    """Only where a map is loaded: numbers stay, also those that look like such an instruction."""
    assert immediates(with_descriptors(CODE, [23, 101])) == [101, 0, 7, 0x18, 23, 0, 0]


def test_the_file_holds_all_of_it():
    """Reading returns exactly what was written."""
    assert CompiledPrograms.from_json(PROGRAMS.to_json()) == PROGRAMS


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(tmp_path / "cache" / "bpfleakd")


def test_what_was_kept_is_found(cache, tmp_path):
    """Under its key, in a directory and a file of our own."""
    assert cache.read("a" * 32) is None
    cache.write("a" * 32, PROGRAMS)
    assert cache.read("a" * 32) == PROGRAMS
    assert cache.read("b" * 32) is None
    directory = tmp_path / "cache" / "bpfleakd"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] == [0o600]


def test_nothing_is_kept_without_a_directory():
    """It is not an error either."""
    CompileCache(None).write("a" * 32, PROGRAMS)
    assert CompileCache(None).read("a" * 32) is None


def test_the_oldest_go(cache, tmp_path):
    """Each version of the sources has a separate file."""
    for number in range(10):
        cache.write(f"{number}", PROGRAMS)
        os.utime(tmp_path / "cache" / "bpfleakd" / f"programs-{number}.json", (number, number))
    cache.write("last", PROGRAMS)
    kept = sorted(path.name for path in (tmp_path / "cache" / "bpfleakd").iterdir())
    assert kept == [*(f"programs-{number}.json" for number in range(3, 10)), "programs-last.json"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"version": 0}', '{"version": 1, "maps": [{}]}', "\x00"]
)
def test_a_damaged_file_is_ignored(cache, tmp_path, content):
    """And rewritten."""
    cache.write("a", PROGRAMS)
    (tmp_path / "cache" / "bpfleakd" / "programs-a.json").write_text(content)
    assert cache.read("a") is None
    cache.write("a", PROGRAMS)
    assert cache.read("a") == PROGRAMS


@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_what_others_could_have_written_is_not_loaded(cache, tmp_path, what):
    """It would run in the kernel."""
    cache.write("a", PROGRAMS)
    file = tmp_path / "cache" / "bpfleakd" / "programs-a.json"
    if what == "link":
        file.rename(file.with_name("elsewhere"))
        file.symlink_to(file.with_name("elsewhere"))
    else:
        (file if what == "file" else file.parent).chmod(0o777)
    assert cache.read("a") is None


def test_a_directory_that_cannot_be_written_is_no_failure(tmp_path):
    """The next start compiles again."""
    (tmp_path / "file").write_text("")
    CompileCache(tmp_path / "file" / "cache").write("a", PROGRAMS)
