"""Reports that are kept: bounded, and safe from whatever becomes of the file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfleakd import errors
from bpfleakd.model.process import ProcessId
from bpfleakd.state.reports import ReportStore

from ..samples import a_process, a_report, a_site

DAY_S = 86_400.0
ID = ProcessId(4_711, 8_009)


_stores: list[ReportStore] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close what a test has opened: Python 3.13 warns of a database that was not closed."""
    yield
    while _stores:
        _stores.pop().close()


def store_in(
    directory: Path | None, *, max_bytes: int = 1 << 20, max_age_s: float = 30 * DAY_S
) -> ReportStore:
    _stores.append(ReportStore(directory, max_bytes=max_bytes, max_age_s=max_age_s))
    return _stores[-1]


def ids(store: ReportStore, pid: int | None = None) -> list[int]:
    return [kept.id for kept in store.newest(pid, 1000)]


@pytest.fixture
def store(tmp_path: Path) -> ReportStore:
    return store_in(tmp_path / "state")


def test_a_report_comes_back_as_it_was(store: ReportStore, tmp_path: Path) -> None:
    """Also by another daemon."""
    report = a_report(sites=(a_site(), a_site("other")))
    store.keep(ID, report, now_s=1000.5)
    store.close()

    again = store_in(tmp_path / "state")
    (kept,) = again.newest(None, 10)

    assert (kept.pid, kept.start_ticks, kept.kept_s, kept.sites) == (4_711, 8_009, 1000.5, 2)
    assert kept.live_bytes == report.process.live_bytes
    saved = again.get(kept.id)
    assert (saved.kept, saved.report) == (kept, report)
    again.close()


def test_the_list_counts_the_call_sites_of_the_process(store: ReportStore) -> None:
    """Not only those that its report has."""
    store.keep(ID, a_report(sites=(a_site(),)), now_s=1.0, sites=6_157)
    assert store.newest(None, 1)[0].sites == 6_157


def test_the_newest_first_and_of_one_pid(store: ReportStore) -> None:
    """A pid may have been several processes."""
    for pid in (23, 101, 23):
        store.keep(ProcessId(pid, pid), a_report(), now_s=1.0)
    assert ids(store) == [3, 2, 1]
    assert ids(store, 23) == [3, 1]
    assert [kept.id for kept in store.newest(None, 2)] == [3, 2]


def test_one_that_is_not_there(store: ReportStore) -> None:
    """Never was, or made room."""
    with pytest.raises(errors.NoSuchReport, match="no report 7 "):
        store.get(7)


def test_old_ones_go(store: ReportStore) -> None:
    """When another is kept."""
    store.keep(ID, a_report(), now_s=0.0)
    store.keep(ID, a_report(), now_s=29 * DAY_S)
    assert ids(store) == [2, 1]
    store.keep(ID, a_report(), now_s=31 * DAY_S)
    assert ids(store) == [3, 2]


def test_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    """The newest stay, and the file does not grow forever."""
    store = store_in(tmp_path, max_bytes=100_000)
    for number in range(200):
        # Nothing that could be compressed.
        noise = os.urandom(5_000).hex()
        store.keep(ID, a_report(sites=(a_site(noise),)), now_s=float(number))
    kept = ids(store)
    assert kept == list(range(200, 200 - len(kept), -1))
    assert 10 <= len(kept) <= 20
    store.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 400_000


def test_one_that_is_larger_than_all_the_room(tmp_path: Path) -> None:
    """It is not kept, and takes no other's place."""
    store = store_in(tmp_path, max_bytes=3_000)
    store.keep(ID, a_report(), now_s=1.0)
    store.keep(ID, a_report(sites=(a_site(os.urandom(5_000).hex()),)), now_s=2.0)
    assert ids(store) == [1]
    assert store.lost_count == 1


def test_names_that_are_no_text(store: ReportStore) -> None:
    """A process and a function with bytes that are not UTF-8, or that a terminal would obey."""
    name = b"\xff\x1b]0;".decode(errors="surrogateescape")
    store.keep(ID, a_report(process=a_process(comm=name, exe=name), sites=(a_site(name),)), now_s=1.0)
    (kept,) = store.newest(None, 1)
    assert kept.comm == r"\xff\x1b]0;"
    assert store.get(kept.id).report.sites[0].function == r"\xff\x1b]0;"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"not a database, but as long as a header would have to be" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:3000]),
        lambda path: path.write_bytes(path.read_bytes()[:4096] + os.urandom(path.stat().st_size - 4096)),
        lambda path: sqlite3.connect(path).execute("PRAGMA application_id=1").connection.close(),
        lambda path: sqlite3.connect(path).execute("PRAGMA user_version=99").connection.close(),
    ],
    ids=["text", "cut", "noise", "foreign", "other-version"],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, spoil) -> None:
    """It is moved aside, and a new one begun."""
    store = store_in(tmp_path)
    for _ in range(50):
        store.keep(ID, a_report(), now_s=1.0)
    store.close()
    path = tmp_path / "state.sqlite3"
    spoil(path)
    spoilt = path.read_bytes()

    again = store_in(tmp_path)

    assert ids(again) == []
    again.keep(ID, a_report(), now_s=2.0)
    assert ids(again) == [1]
    assert (tmp_path / "state.sqlite3.unusable").read_bytes()[:4096] == spoilt[:4096]
    again.close()


def test_no_directory(tmp_path: Path) -> None:
    """Storing disabled, and impossible: the daemon continues, and counts lost reports in the second case."""
    nothing = store_in(None)
    nothing.keep(ID, a_report(), now_s=1.0)
    assert (ids(nothing), nothing.lost_count) == ([], 0)

    (tmp_path / "file").write_text("")
    nowhere = store_in(tmp_path / "file" / "state")
    nowhere.keep(ID, a_report(), now_s=1.0)
    assert (ids(nowhere), nowhere.lost_count) == ([], 1)


def test_the_directory_is_roots_alone(store: ReportStore, tmp_path: Path) -> None:
    """Reports tell what programs do."""
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state/state.sqlite3").stat().st_mode & 0o777 == 0o600


_WRITER = """
import sys
from pathlib import Path
from bpfleakd.model.process import ProcessId
from bpfleakd.state.reports import ReportStore
from tests.unit.samples import a_report, a_site
store = ReportStore(Path(sys.argv[1]), max_bytes=200_000, max_age_s=1e9)
number = 0
while True:
    number += 1
    store.keep(ProcessId(number, 1), a_report(sites=tuple(a_site(f"f{number}{i}") for i in range(50))), 1.0)
    print(number, flush=True)
"""


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """Every report that was confirmed is there and complete, again and again."""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    for round_number in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=environment
        ) as writer:
            assert writer.stdout is not None
            for _ in range(5 + round_number):
                writer.stdout.readline()
            time.sleep(0.003 * round_number)
            writer.send_signal(signal.SIGKILL)
            said = 5 + round_number + len(writer.stdout.read().splitlines())

        path = tmp_path / "state.sqlite3"
        database = sqlite3.connect(path)
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        database.close()
        store = store_in(tmp_path)
        newest = store.newest(None, 1)[0]
        assert newest.pid >= said
        assert len(store.get(newest.id).report.sites) == 50
        store.close()
    assert not (tmp_path / "state.sqlite3.unusable").exists()
