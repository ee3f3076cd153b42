"""Probe points on disk: the same as a search finds, and none that are another file's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.kernel.probes import point_cache
from bpfleakd.kernel.probes.point_cache import ProbePointCache
from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, WantedFunction
from bpfleakd.sandbox.helpers import Helpers

from ...helping import helpers

WANTED = [WantedFunction("malloc", ("rdi",), "size", release=False)]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were searched, in place of a disassembler; each has its length as an offset."""
    names: list[str] = []

    def search(
        _helpers: Helpers, file: SearchedFile, _functions: Sequence[WantedFunction]
    ) -> list[FunctionProbe]:
        names.append(file.name)
        if file.name == "bad":
            raise errors.BadElf("it is bad")
        return [FunctionProbe("malloc", file.descriptor, emulated=True, registers=("rdi",))]

    monkeypatch.setattr(point_cache, "search_file", search)
    return names


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def file(name: str, content: str = "code") -> tuple[SearchedFile, bytes | None]:
    """A file that is never opened: its descriptor is the length of its content."""
    return SearchedFile(name, len(content)), content.encode()


def test_a_file_is_searched_once(directory: Path, searched: list[str]) -> None:
    """Also after a restart, and under another name."""
    one, same, two = file("one"), file("same"), file("two", "longer code")
    first = ProbePointCache(helpers(), directory).search(*one, WANTED)
    cache = ProbePointCache(helpers(), directory)
    cache.search(*two, WANTED)
    assert cache.search(*same, WANTED) == first
    assert [cache.search(*known, WANTED)[0].offset for known in (one, two)] == [4, 11]
    assert searched == ["one", "two"]


def test_whatever_differs_is_another(directory: Path, searched: list[str]) -> None:
    """The content and the functions; the name says nothing."""
    cache = ProbePointCache(helpers(), directory)
    cache.search(*file("code"), WANTED)
    cache.search(*file("code", "edoc"), WANTED)
    cache.search(*file("code"), [*WANTED, WantedFunction("free", ("rdi",), "free", release=True)])
    assert searched == ["code"] * 3


def test_no_answer_is_not_kept(directory: Path, searched: list[str]) -> None:
    """A failed search is repeated."""
    for _ in range(2):
        with pytest.raises(errors.BadElf):
            ProbePointCache(helpers(), directory).search(*file("bad", "junk"), WANTED)
    assert searched == ["bad", "bad"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'[{"function": "malloc"}]', b'[{"registers": [], "nothing": 1}]', b"\xff"]
)
def test_a_damaged_entry(directory: Path, searched: list[str], content: bytes) -> None:
    """It is as if it were not there, and is written again."""
    code = file("code")
    first = ProbePointCache(helpers(), directory).search(*code, WANTED)
    (entry,) = directory.iterdir()
    entry.write_bytes(content)
    assert ProbePointCache(helpers(), directory).search(*code, WANTED) == first
    assert ProbePointCache(helpers(), directory).search(*code, WANTED) == first
    assert searched == ["code", "code"]


def test_what_others_could_have_written(directory: Path, searched: list[str]) -> None:
    """A breakpoint at an attacker's place would harm the process that gets it."""
    code = file("code")
    ProbePointCache(helpers(), directory).search(*code, WANTED)
    (entry,) = directory.iterdir()
    entry.chmod(0o666)
    ProbePointCache(helpers(), directory).search(*code, WANTED)
    assert searched == ["code", "code"]


def test_no_more_entries_than_that(
    directory: Path, searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those unused for longest go."""
    monkeypatch.setattr(point_cache, "_KEPT", 2)
    files = [file(str(number), "x" * number) for number in range(4)]
    for number, one in enumerate(files):
        ProbePointCache(helpers(), directory).search(*one, WANTED)
        for age, entry in enumerate(sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime)):
            os.utime(entry, (number + age, number + age))
    assert len(list(directory.iterdir())) == 2
    for kept in files[2:]:
        ProbePointCache(helpers(), directory).search(*kept, WANTED)
    assert searched == ["0", "1", "2", "3"]


def test_files_without_a_digest(directory: Path, searched: list[str]) -> None:
    """A file that may have other bytes the next time is not cached."""
    unsure, _digest = file("unsure")
    for _ in range(2):
        ProbePointCache(helpers(), directory).search(unsure, None, WANTED)
    assert searched == ["unsure", "unsure"]
    assert not directory.exists()


def test_no_directory(searched: list[str]) -> None:
    """Nothing is kept, and all is found."""
    code = file("code")
    cache = ProbePointCache(helpers(), None)
    assert cache.search(*code, WANTED) == cache.search(*code, WANTED)
    assert searched == ["code", "code"]
