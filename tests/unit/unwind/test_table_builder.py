"""Tables of files, by a helper or from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.unwind.table_builder import BuiltTable, TableBuilder

from ..helping import helpers
from .compiling import Program, compiled


class NoHelpers(Helpers):
    """Fails on any use."""

    def answers(self, *_arguments: object, **_limits: object) -> Iterator[object]:  # type: ignore[override]
        raise HelperFailed("nobody is to be asked")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compiled(Program.FRAMES, tmp_path)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def built(path: Path, builder: TableBuilder, *, is_stable: bool = True) -> BuiltTable:
    with path.open("rb") as file:
        return builder.table_of(file.fileno(), is_stable=is_stable)


def test_the_second_time_needs_no_helper(program: Path, cache: Path) -> None:
    """The cache has exactly the helper's table."""
    before = built(program, TableBuilder(helpers(), cache))
    again = built(program, TableBuilder(NoHelpers([]), cache))
    assert before.table is not None
    assert again.table is not None
    assert np.array_equal(again.table.rows, before.table.rows)
    assert again.table.rules == before.table.rules
    assert (again.digest, again.segments) == (before.digest, before.segments)


def test_bytes_that_may_change_are_not_kept(program: Path, cache: Path) -> None:
    """The table could be of other bytes than the digest."""
    assert built(program, TableBuilder(helpers(), cache), is_stable=False).table is not None
    with pytest.raises(HelperFailed):
        built(program, TableBuilder(NoHelpers([]), cache))


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"MZ", b"MZ" + bytes(4096), bytes(100)])
def test_files_that_have_none(tmp_path: Path, cache: Path, content: bytes) -> None:
    """A reason takes the place of the table."""
    junk = tmp_path / "junk"
    junk.write_bytes(content)
    found = built(junk, TableBuilder(helpers(), cache))
    assert found.table is None
    assert found.failure


def test_the_vdso(cache: Path) -> None:
    """The kernel's own, which is not a file."""
    found = TableBuilder(NoHelpers([]), cache).vdso_table()
    assert found.table is not None
    assert found.segments


def test_without_a_cache(program: Path) -> None:
    """The helper builds, and nothing is kept."""
    found = built(program, TableBuilder(helpers()))
    assert found.table is not None
    assert found.segments
