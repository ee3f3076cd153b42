"""Stores the input of verdicts for the next daemon, with the tables of the process.

Rules:
  - It is written every ten seconds at most, in at most a hundredth of the time: a daemon that is killed loses
    newer data, which becomes part of the gap.
  - At most `_CELLS_MAX` cells of the timeline are saved (400 KB before compression): of the most important
    sites, and of the largest.
  - The next daemon checks the data, and starts over if it is inconsistent. However long the gap was, the
    history continues: births, frees and survivors were counted (table/gaps.py).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import structlog
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.kernel.blob import Blob
from bpfleakd.model.site import SiteKey
from bpfleakd.table.site_table import COUNTERS, SiteTable
from bpfleakd.table.table_checkpoint import TableCheckpoint
from bpfleakd.tracing.checkpoint import read_checkpoint, write_checkpoint
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts, VerdictsCheckpoint
from bpfleakd.tracing.site_charging import SiteIdentity
from bpfleakd.tracing.traced_process import TracedProcess

log = structlog.get_logger()

_PAUSE_NS = 10_000_000_000
_FIRST_PAUSE_NS = 2_000_000_000
_SHARE = 0.01
# The share of the time for the histories of all processes. If they are many, each is written less often.
_SHARE_OF_ALL = 0.002
_LONGEST_PAUSE_NS = 60_000_000_000
_CELLS_MAX = 32_768


class HistoryCheckpoint(Struct, frozen=True):
    """The stored data. `identities` are those of sites by place: fingerprint, module and function."""

    table: TableCheckpoint
    verdicts: VerdictsCheckpoint
    identities: list[tuple[int, str, str | None, str | None]] = msgspec.field(default_factory=list)


class HistoryCheckpoints:
    """Stores the histories of all traced processes. `clock_ns` is CLOCK_MONOTONIC."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._records: dict[int, Blob] = {}
        self._due_ns: dict[int, int] = {}

    def keep(self, traced: TracedProcess, *, now: bool = False) -> None:
        """Store the history of a process, if it is due, or `now`."""
        pid, began_ns = traced.pid, self._clock_ns()
        if traced.is_gone or not len(traced.table.timeline):
            return
        if not now and began_ns < self._due_ns.setdefault(pid, began_ns + _FIRST_PAUSE_NS):
            return
        record = self._records.setdefault(pid, traced.attachment.pins.record("history"))
        rows = _rows_to_keep(traced)
        try:
            write_checkpoint(
                record,
                HistoryCheckpoint(
                    traced.table.checkpoint(rows),
                    traced.verdicts.checkpoint(rows),
                    _identities(traced, rows),
                ),
            )
        except OSError as error:
            # An old record would pass for the state at the daemon's end.
            record.remove()
            log.warning("history.not-kept", pid=pid, reason=error.strerror)
        took_ns = self._clock_ns() - began_ns
        others = len(self._due_ns) - 1
        shared_ns = min(_LONGEST_PAUSE_NS, round(took_ns * others / _SHARE_OF_ALL))
        self._due_ns[pid] = began_ns + max(_PAUSE_NS, round(took_ns / _SHARE), shared_ns)

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced, or handed to another daemon."""
        self._due_ns.pop(pid, None)
        record = self._records.pop(pid, None)
        if record is not None:
            record.close()


def restored_history(
    record: Blob, leak_after_s: float, now_ns: int
) -> tuple[SiteTable, SiteVerdicts, dict[SiteKey, SiteIdentity]]:
    """The saved table, verdicts and identities. ValueError if they cannot be continued."""
    try:
        kept = read_checkpoint(record, HistoryCheckpoint)
    finally:
        record.close()
    table = SiteTable.restored(kept.table, now_ns)
    keys = table.keys
    if not all(0 <= place < len(keys) for place, *_names in kept.identities):
        raise ValueError("identities of other call sites")
    identities = {
        keys[place]: SiteIdentity(fingerprint, module, function)
        for place, fingerprint, module, function in kept.identities
    }
    return table, SiteVerdicts.restored(kept.verdicts, leak_after_s), identities


def _identities(
    traced: TracedProcess, rows: NDArray[np.intp]
) -> list[tuple[int, str, str | None, str | None]]:
    known, keys = traced.charging.identities, traced.table.keys
    found = ((place, known.get(keys[row])) for place, row in enumerate(rows.tolist()))
    return [(place, one.fingerprint, one.module, one.function) for place, one in found if one]


def _rows_to_keep(traced: TracedProcess) -> NDArray[np.intp]:
    rows = traced.table.rows
    limit = _CELLS_MAX // len(traced.table.timeline)
    if len(rows) <= limit:
        return rows
    attention, rates = traced.verdicts.ranks(rows)
    live_bytes = traced.table.columns()[:, COUNTERS.index("live_bytes")]
    return np.sort(rows[np.lexsort((live_bytes[rows], rates, attention))[-limit:]])
