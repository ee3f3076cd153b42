"""The complete last reports of processes, limited in size and age.

A report is stored as the JSON of docs/json.md, compressed. The oldest are removed first. Disk errors are
logged and counted, and only cost the report.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from bpfleakd import errors
from bpfleakd.model.process import ProcessId
from bpfleakd.model.report import LeakReport, StoredReport, StoredReportEntry
from bpfleakd.printable import printable, without_surrogates
from bpfleakd.state.database import open_database

log = structlog.get_logger()

T = TypeVar("T")

_COLUMNS = "id, kept_s, pid, start_ticks, comm, exe, state, live_bytes, live_count, growth_bytes_per_s, sites"


class ReportStore:
    """Reports in the database of `directory`; None stores nothing.

    `max_bytes` is the limit of all compressed reports together. Used from one thread. `lost_count` is the
    number of reports that could not be stored.
    """

    def __init__(self, directory: Path | None, *, max_bytes: int, max_age_s: float) -> None:
        self.lost_count = 0
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._database: sqlite3.Connection | None = None
        if directory is not None:
            try:
                self._database = open_database(directory)
            except (OSError, ValueError, sqlite3.Error) as error:
                log.warning("state.not-kept", directory=directory, reason=str(error))

    def keep(self, id_: ProcessId, report: LeakReport, now_s: float, sites: int = 0) -> None:
        """Store a report of a process; `now_s` is the time of day (seconds since 1970).

        The process had `sites` call sites; the report has the largest.
        """
        if self._database is None:
            self.lost_count += self._directory is not None
            return
        text = zlib.compress(_encoded(report), 6)
        process = report.process
        row = (
            now_s,
            id_.pid,
            id_.start_ticks,
            printable(process.comm),
            printable(process.exe),
            process.state.value,
            process.live_bytes,
            process.live_count,
            process.growth_bytes_per_s or 0.0,
            max(sites, len(report.sites)),
            len(text),
            text,
        )
        if len(text) > self._max_bytes:
            self.lost_count += 1
            log.warning("state.report-too-large", pid=id_.pid, size_bytes=len(text))
            return
        columns = f"{_COLUMNS.removeprefix('id, ')}, size_bytes, report"
        insert = f"INSERT INTO reports ({columns}) VALUES ({', '.join('?' * len(row))})"

        def change(database: sqlite3.Connection) -> bool:
            with _transaction(database):
                database.execute(insert, row)
                self._make_room(database, now_s)
            database.execute("PRAGMA incremental_vacuum")
            return True

        if not self._attempt(change):
            self.lost_count += 1

    def newest(self, pid: int | None, limit: int) -> tuple[StoredReportEntry, ...]:
        """The newest reports first, of all processes or of those that had a pid."""
        where, values = ("WHERE pid = ?", (pid, limit)) if pid is not None else ("", (limit,))
        query = f"SELECT {_COLUMNS} FROM reports {where} ORDER BY id DESC LIMIT ?"
        rows = self._attempt(lambda database: database.execute(query, values).fetchall())
        return tuple(StoredReportEntry(*row) for row in rows or ())

    def get(self, number: int) -> StoredReport:
        """One report, whole. Raises NoSuchReport."""
        query = f"SELECT {_COLUMNS}, report FROM reports WHERE id = ?"
        row = self._attempt(lambda database: database.execute(query, (number,)).fetchone())
        if row is None:
            raise errors.NoSuchReport(
                f"there is no report {number}", "`bpfleakctl reports` lists the stored reports"
            )
        try:
            report = msgspec.json.decode(zlib.decompress(row[-1]), type=LeakReport)
        except (zlib.error, msgspec.MsgspecError) as error:
            raise errors.NoSuchReport(f"report {number} is damaged: {error}") from error
        return StoredReport(StoredReportEntry(*row[:-1]), report)

    def close(self) -> None:
        """Close the database."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _make_room(self, database: sqlite3.Connection, now_s: float) -> None:
        database.execute("DELETE FROM reports WHERE kept_s < ?", (now_s - self._max_age_s,))
        # All reports older than the newest ones that fit.
        database.execute(
            "DELETE FROM reports WHERE id <= (SELECT max(id) FROM (SELECT id, sum(size_bytes) OVER "
            "(ORDER BY id DESC) AS size_so_far FROM reports) WHERE size_so_far > ?)",
            (self._max_bytes,),
        )

    def _attempt(self, action: Callable[[sqlite3.Connection], T]) -> T | None:
        """The result of `action`; None without a database or after an error, which is logged."""
        if self._database is None:
            return None
        try:
            return action(self._database)
        except sqlite3.Error as error:
            log.warning("state.failed", reason=str(error))
            if not isinstance(error, sqlite3.OperationalError):
                self._begin_anew()
            return None

    def _begin_anew(self) -> None:
        """Start over, since the file was damaged while it was open."""
        self.close()
        try:
            assert self._directory is not None
            self._database = open_database(self._directory)
        except (OSError, sqlite3.Error) as error:
            log.warning("state.not-kept", directory=self._directory, reason=str(error))


class _transaction:
    """BEGIN and COMMIT, or ROLLBACK after an error."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._database.execute("COMMIT" if kind is None else "ROLLBACK")


def _encoded(report: LeakReport) -> bytes:
    try:
        return msgspec.json.encode(report)
    except UnicodeEncodeError:
        # A name with bytes that are not UTF-8 (Python has them as surrogates); JSON cannot carry them.
        return msgspec.json.encode(without_surrogates(msgspec.to_builtins(report)))
