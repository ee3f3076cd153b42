"""Tables of files, by a child or from the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bpfleakd.elf.vdso import VDSO
from bpfleakd.unwind import worker
from bpfleakd.unwind.worker import build_tables

from .compiling import Program, compiled


@pytest.fixture
def program(tmp_path: Path) -> str:
    return str(compiled(Program.FRAMES, tmp_path))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def no_child(*_arguments: object) -> None:
    raise AssertionError("a child was started")


def test_the_second_time_needs_no_child(program: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the cache is what the child built."""
    built = {table.path: table for table in build_tables([program, VDSO], cache)}
    monkeypatch.setattr(worker, "_run", no_child)
    for again in build_tables([program, VDSO], cache):
        before = built[again.path]
        assert before.table is not None
        assert again.table is not None
        assert np.array_equal(again.table.rows, before.table.rows)
        assert again.table.rules == before.table.rules
        assert (again.digest, again.segments) == (before.digest, before.segments)


def test_what_is_known_comes_first(program: str, cache: Path, tmp_path: Path) -> None:
    """It does not wait for the others, of which the child says what is wrong with them."""
    list(build_tables([program], cache))
    absent, junk = str(tmp_path / "absent"), tmp_path / "junk"
    junk.write_bytes(b"\x7fELF")
    found = list(build_tables([absent, str(junk), program], cache))
    assert [table.path for table in found] == [program, absent, str(junk)]
    assert [bool(table.failure) for table in found] == [False, True, True]


def test_large_ones_are_the_childs(program: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sections would stay in the daemon's memory."""
    list(build_tables([program], cache))
    monkeypatch.setattr(worker, "_READ_HERE_BYTES_MAX", 16)
    monkeypatch.setattr(worker, "_run", no_child)
    with pytest.raises(AssertionError, match="a child was started"):
        list(build_tables([program], cache))


def test_without_a_cache(program: str) -> None:
    """The child builds, and nothing is kept."""
    (built,) = build_tables([program])
    assert built.table is not None
    assert built.segments
