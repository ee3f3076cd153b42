"""Stored reports."""

from __future__ import annotations

from msgspec import Struct

from bpfleakd.model.report import LeakReport


class StoredReportEntry(Struct, frozen=True):
    """A stored report: its process and its totals. `kept_s` is the time of day (Unix).

    `state` is how the process, or its tracing, ended; `sites` are those it had, of which the report has the
    largest.
    """

    id: int
    kept_s: float
    pid: int
    start_ticks: int
    comm: str
    exe: str
    state: str
    live_bytes: int
    live_count: int
    growth_bytes_per_s: float
    sites: int


class StoredReport(Struct, frozen=True):
    """A complete stored report."""

    kept: StoredReportEntry
    report: LeakReport
