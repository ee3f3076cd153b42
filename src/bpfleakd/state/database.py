"""The database of the daemon: opened, checked, or started over.

Rules:
  - Each change is one transaction, in a write-ahead log: a killed daemon leaves it complete or undone. SQLite
    does not wait for the disk (synchronous=NORMAL): after a power cut the last changes may be missing.
  - A file that is damaged, another program's, or of another version, is moved aside (one of them is kept) and
    a new one begun: what is remembered is never worth a daemon that does not start.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import structlog

from bpfleakd.private_directory import make_private

log = structlog.get_logger()

_APPLICATION_ID = 0x62706C6B  # "bplk"
# Increment this with every change of the tables.
_VERSION = 1
_FILE = "state.sqlite3"
_BUSY_TIMEOUT_S = 2.0

_TABLES = """
CREATE TABLE reports (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kept_s REAL NOT NULL,
    pid INTEGER NOT NULL,
    start_ticks INTEGER NOT NULL,
    comm TEXT NOT NULL,
    exe TEXT NOT NULL,
    state TEXT NOT NULL,
    live_bytes INTEGER NOT NULL,
    live_count INTEGER NOT NULL,
    growth_bytes_per_s REAL NOT NULL,
    sites INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    report BLOB NOT NULL
);
CREATE INDEX reports_of_process ON reports (pid, kept_s);
CREATE INDEX reports_by_age ON reports (kept_s);
"""


def open_database(directory: Path) -> sqlite3.Connection:
    """Open the database in `directory`; creates both if missing.

    Raises OSError, sqlite3.Error, or ValueError for a directory that another user could have created.
    """
    make_private(directory, [os.geteuid()])
    path = directory / _FILE
    try:
        return _opened(path)
    except (sqlite3.DatabaseError, ValueError) as error:
        # OperationalError comes from the disk or the system, so a new file would not help.
        if isinstance(error, sqlite3.OperationalError):
            raise
        log.warning("state.moved-aside", path=path, reason=str(error))
        _move_aside(path)
        return _opened(path)


def _opened(path: Path) -> sqlite3.Connection:
    """Raises ValueError for another program's or version's file, sqlite3.DatabaseError for a damaged one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    try:
        is_new = path.stat().st_size == 0
        if not is_new:
            _refuse_foreign(connection)
        else:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA journal_size_limit=1048576")
        if is_new:
            marks = f"PRAGMA application_id={_APPLICATION_ID}; PRAGMA user_version={_VERSION};"
            connection.executescript(f"BEGIN; {_TABLES} {marks} COMMIT;")
        return connection
    except BaseException:
        connection.close()
        raise


def _refuse_foreign(connection: sqlite3.Connection) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION_ID:
        raise ValueError("it is another program's")
    if version != _VERSION:
        raise ValueError(f"its version is {version}, not {_VERSION}")
    (outcome,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if outcome != "ok":
        raise ValueError(f"it is damaged: {outcome}")


def _move_aside(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(path, path.with_name(f"{path.name}.unusable"))
