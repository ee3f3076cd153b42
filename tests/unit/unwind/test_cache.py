"""The cache on disk: the same table or none, whatever happened to the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict, replace

from bpfleakd.errors import BadElf
from bpfleakd.unwind import cache as cache_module
from bpfleakd.unwind.build import FrameSections, build_table
from bpfleakd.unwind.cache import TableCache
from bpfleakd.unwind.malformed import SkipReason
from bpfleakd.unwind.table import UnwindTable, check

from .hand_made import TEXT_START, EhFrame, def_cfa_offset


def sections(offset: int = 16, **fields: object) -> FrameSections:
    frame = EhFrame()
    cie = frame.cie()
    frame.fde(cie, TEXT_START, 0x1234, def_cfa_offset(offset))
    frame.fde(cie, 0x4000, 0)
    return frame.sections(**fields)


def expect_equal(one: UnwindTable, other: UnwindTable) -> None:
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.page_index, other.page_index)
    for name in ("build_id", "text_start", "rules", "fde_count", "skipped"):
        assert getattr(one, name) == getattr(other, name)


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.unwind"))


@pytest.fixture
def cache(tmp_path: Path) -> TableCache:
    return TableCache(tmp_path / "cache" / "unwind")


def counts(cache: TableCache) -> dict[str, int]:
    return {name: count for name, count in asdict(cache.counts).items() if count}


def test_the_second_time_it_is_read(cache: TableCache) -> None:
    """All of the table comes back, and passes the check."""
    built = cache.table_of(sections())
    read = cache.table_of(sections())

    expect_equal(built, read)
    check(read)
    assert read.skipped == {SkipReason.EMPTY: 1}
    assert counts(cache) == {"misses": 1, "hits": 1}


def test_another_process_reads_it(cache: TableCache) -> None:
    """An entry does not depend on its writer."""
    built = cache.table_of(sections())

    other = TableCache(cache.directory)

    expect_equal(built, other.table_of(sections()))
    assert counts(other) == {"hits": 1}


def test_a_build_id_alone_is_not_enough(cache: TableCache) -> None:
    """A file with another file's build-id gets its own table, and replaces none."""
    original, impostor = sections(16), sections(24)

    tables = [cache.table_of(each) for each in (original, impostor, original, impostor)]

    assert [table.lookup(TEXT_START).cfa_offset for table in tables] == [16, 24, 16, 24]
    assert counts(cache) == {"misses": 2, "hits": 2}


@pytest.mark.parametrize("build_id", [None, "", "../../etc/passwd", "a" * 500, "ü\0/"])
def test_any_build_id(cache: TableCache, build_id: str | None) -> None:
    """It comes from a note of the file, which may hold anything."""
    given = sections(build_id=build_id)

    expect_equal(cache.table_of(given), cache.table_of(given))

    assert counts(cache) == {"misses": 1, "hits": 1}
    assert len(entries(cache.directory)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data + b"\0",
        lambda data: bytes(len(data)),
        lambda data: data[:100] + bytes((data[100] ^ 1,)) + data[101:],
        lambda data: data[:-1] + bytes((data[-1] ^ 0x80,)),
    ],
)
def test_damaged_entries_are_built_again(cache: TableCache, damage: object) -> None:
    """Counted, and replaced by a good one."""
    built = cache.table_of(sections())
    (entry,) = entries(cache.directory)
    entry.write_bytes(damage(entry.read_bytes()))

    expect_equal(built, cache.table_of(sections()))
    expect_equal(built, cache.table_of(sections()))
    assert counts(cache) == {"misses": 1, "corrupt": 1, "hits": 1}


def test_right_checksum_but_wrong_contents(cache: TableCache) -> None:
    """Whatever the checksum says, rows that BPF could not search are refused."""
    built = cache.table_of(sections())
    (entry,) = entries(cache.directory)
    body = bytearray(entry.read_bytes()[:-16])
    body[-4:] = b"\xff" * 4
    entry.write_bytes(bytes(body) + cache_module._checksum(bytes(body)))

    expect_equal(built, cache.table_of(sections()))
    assert counts(cache) == {"misses": 1, "corrupt": 1}


def test_another_version_is_built_again(cache: TableCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an update of the daemon, old entries are replaced."""
    cache.table_of(sections())
    monkeypatch.setattr(cache_module, "FORMAT_VERSION", 1_000_000)

    cache.table_of(sections())
    cache.table_of(sections())

    assert counts(cache) == {"misses": 1, "corrupt": 1, "hits": 1}


def test_another_limit_is_another_table(cache: TableCache) -> None:
    """A table that was cut at fewer rows does not serve."""
    cache.table_of(sections())

    other = TableCache(cache.directory, max_rows=1_000)
    other.table_of(sections())

    assert counts(other) == {"corrupt": 1}


def test_only_the_owner_can_read_and_write(cache: TableCache) -> None:
    """The modes of created files."""
    cache.table_of(sections())

    modes = [stat.S_IMODE(path.stat().st_mode) for path in (cache.directory, *entries(cache.directory))]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize("writable", ["directory", "entry"])
def test_what_others_can_write_is_not_read(cache: TableCache, writable: str) -> None:
    """And nothing is put into such a directory."""
    built = cache.table_of(sections())
    (entry,) = entries(cache.directory)
    (cache.directory if writable == "directory" else entry).chmod(0o777)

    expect_equal(built, cache.table_of(sections()))

    assert cache.counts.hits == 0
    assert cache.counts.corrupt == 1
    assert cache.counts.failed == (writable == "directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a file to another user")
@pytest.mark.parametrize("foreign", ["directory", "entry"])
def test_what_others_own_is_not_read(cache: TableCache, foreign: str) -> None:
    """Only root's and our own."""
    cache.table_of(sections())
    (entry,) = entries(cache.directory)
    os.chown(cache.directory if foreign == "directory" else entry, 65534, 65534)

    cache.table_of(sections())

    assert cache.counts.hits == 0
    assert cache.counts.corrupt == 1


@pytest.mark.parametrize("linked", ["directory", "entry"])
def test_symbolic_links_are_not_followed(cache: TableCache, tmp_path: Path, linked: str) -> None:
    """Neither for reading nor for writing."""
    cache.table_of(sections())
    (entry,) = entries(cache.directory)
    original = cache.directory if linked == "directory" else entry
    original.rename(tmp_path / "elsewhere")
    original.symlink_to(tmp_path / "elsewhere")

    cache.table_of(sections())

    assert cache.counts.hits == 0
    assert cache.counts.corrupt == 1
    if linked == "entry":
        assert not entry.is_symlink()


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_no_regular_file(cache: TableCache, kind: str) -> None:
    """A pipe without a writer does not block the daemon."""
    cache.table_of(sections())
    (entry,) = entries(cache.directory)
    entry.unlink()
    os.mkfifo(entry, 0o600) if kind == "fifo" else entry.mkdir(0o700)

    cache.table_of(sections())

    assert cache.counts.corrupt == 1


def test_the_oldest_make_room(cache: TableCache) -> None:
    """The least recently used entries go; reading an entry makes it new."""
    names = {}
    for offset in range(8, 16):
        before = set(entries(cache.directory))
        cache.table_of(sections(offset))
        (names[offset],) = set(entries(cache.directory)) - before
        os.utime(names[offset], ns=(offset, offset))
    size_bytes = names[8].stat().st_size
    cache.table_of(sections(8))

    small = TableCache(cache.directory, max_bytes=3 * size_bytes + 100)
    small.table_of(sections(16))

    left = set(entries(cache.directory))
    assert left == {names[8], names[15], *(left - set(names.values()))}
    assert len(left) == 3
    assert small.counts.removed == 6


def test_left_over_temporary_files_age_too(cache: TableCache) -> None:
    """A daemon that was killed while it wrote leaves one; other files in the directory are not touched."""
    cache.table_of(sections())
    left_over = cache.directory / "0123.unwind-tmp"
    left_over.write_bytes(bytes(100_000))
    foreign = cache.directory / "README"
    foreign.write_bytes(bytes(100_000))
    os.utime(left_over, ns=(1, 1))

    TableCache(cache.directory, max_bytes=50_000).table_of(sections(24))

    assert not left_over.exists()
    assert foreign.exists()
    assert len(entries(cache.directory)) == 2


def test_a_table_larger_than_the_cache(cache: TableCache) -> None:
    """Is not stored, and throws nothing else out."""
    cache.table_of(sections())

    small = TableCache(cache.directory, max_bytes=50)
    small.table_of(sections(24))

    assert small.counts.failed == 1
    assert len(entries(cache.directory)) == 1


@pytest.mark.parametrize("where", ["/proc/nowhere", "/dev/null/x"])
def test_a_directory_that_cannot_be(where: str) -> None:
    """The table is built all the same."""
    unusable = TableCache(Path(where))

    expect_equal(unusable.table_of(sections()), build_table(sections()))

    assert unusable.counts.failed == 1


def test_nothing_is_stored_for_a_bad_file(cache: TableCache) -> None:
    """The builder's exception is passed on."""
    with pytest.raises(BadElf):
        cache.table_of(replace(sections(), eh_frame=b""))

    assert not cache.directory.exists()
