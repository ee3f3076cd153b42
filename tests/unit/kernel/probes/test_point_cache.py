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

WANTED = [WantedFunction("malloc", ("rdi",), "size", release=False)]


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were searched, in place of a disassembler; each has its length as an offset."""
    names: list[str] = []

    def search(
        files: Sequence[SearchedFile], _functions: Sequence[WantedFunction]
    ) -> list[list[FunctionProbe] | errors.BpfleakdError]:
        names.extend(file.name for file in files)
        return [
            errors.BadElf("it is bad")
            if file.name == "bad"
            else [FunctionProbe("malloc", file.descriptor, emulated=True, registers=("rdi",))]
            for file in files
        ]

    monkeypatch.setattr(point_cache, "search_files", search)
    return names


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def file(name: str, content: str = "code") -> tuple[SearchedFile, bytes | None]:
    """A file that is never opened: its descriptor is the length of its content."""
    return SearchedFile(name, len(content)), content.encode()


def test_a_file_is_searched_once(directory: Path, searched: list[str]) -> None:
    """Also after a restart, and under another name; answers stay in the order of the questions."""
    one, same, two = file("one"), file("same"), file("two", "longer code")
    first = ProbePointCache(directory).search([one], WANTED)
    assert ProbePointCache(directory).search([two, same], WANTED)[1] == first[0]
    assert searched == ["one", "two"]
    assert [answer[0].offset for answer in ProbePointCache(directory).search([one, two], WANTED)] == [4, 11]
    assert searched == ["one", "two"]


def test_whatever_differs_is_another(directory: Path, searched: list[str]) -> None:
    """The content and the functions; the name says nothing."""
    cache = ProbePointCache(directory)
    cache.search([file("code")], WANTED)
    cache.search([file("code", "edoc")], WANTED)
    cache.search([file("code")], [*WANTED, WantedFunction("free", ("rdi",), "free", release=True)])
    assert searched == ["code"] * 3


def test_no_answer_is_not_kept(directory: Path, searched: list[str]) -> None:
    """What could not be understood is tried again, and does not hide the others."""
    files = [file("bad", "junk"), file("good")]
    for _ in range(2):
        bad, good = ProbePointCache(directory).search(files, WANTED)
        assert isinstance(bad, errors.BadElf)
        assert isinstance(good, list)
    assert searched == ["bad", "good", "bad"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b'[{"function": "malloc"}]', b'[{"registers": [], "nothing": 1}]', b"\xff"]
)
def test_a_damaged_entry(directory: Path, searched: list[str], content: bytes) -> None:
    """It is as if it were not there, and is written again."""
    code = file("code")
    first = ProbePointCache(directory).search([code], WANTED)
    (entry,) = directory.iterdir()
    entry.write_bytes(content)
    assert ProbePointCache(directory).search([code], WANTED) == first
    assert ProbePointCache(directory).search([code], WANTED) == first
    assert searched == ["code", "code"]


def test_what_others_could_have_written(directory: Path, searched: list[str]) -> None:
    """A breakpoint at a place that somebody chose would harm whom it is put into."""
    code = file("code")
    ProbePointCache(directory).search([code], WANTED)
    (entry,) = directory.iterdir()
    entry.chmod(0o666)
    ProbePointCache(directory).search([code], WANTED)
    assert searched == ["code", "code"]


def test_no_more_entries_than_that(
    directory: Path, searched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those unused for longest go."""
    monkeypatch.setattr(point_cache, "_KEPT", 2)
    files = [file(str(number), "x" * number) for number in range(4)]
    for number, one in enumerate(files):
        ProbePointCache(directory).search([one], WANTED)
        for age, entry in enumerate(sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime)):
            os.utime(entry, (number + age, number + age))
    assert len(list(directory.iterdir())) == 2
    ProbePointCache(directory).search(files[2:], WANTED)
    assert searched == ["0", "1", "2", "3"]


def test_files_without_a_digest(directory: Path, searched: list[str]) -> None:
    """What could be other bytes the next time is not kept."""
    unsure, _digest = file("unsure")
    for _ in range(2):
        ProbePointCache(directory).search([(unsure, None)], WANTED)
    assert searched == ["unsure", "unsure"]
    assert not directory.exists()


def test_no_directory(searched: list[str]) -> None:
    """Nothing is kept, and all is found."""
    code = file("code")
    cache = ProbePointCache(None)
    assert cache.search([code], WANTED) == cache.search([code], WANTED)
    assert searched == ["code", "code"]
