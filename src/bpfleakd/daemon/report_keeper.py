"""Stores the last report of each process."""

from __future__ import annotations

import time

from bpfleakd.model.process import ProcessId
from bpfleakd.model.report import LeakReport
from bpfleakd.state.reports import ReportStore
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.traced_process import TracedProcess


class ReportKeeper(TracingObserver):
    """Stores the last report of each process."""

    def __init__(self, reports: ReportStore) -> None:
        self._reports = reports

    def ended(self, traced: TracedProcess) -> None:
        if traced.final is not None:
            self.keep(traced.attachment.process.id, traced.final, traced.table.used_count)

    def keep(self, process: ProcessId, report: LeakReport, sites: int = 0) -> None:
        """Store the current report of a process with `sites` call sites."""
        self._reports.keep(process, report, time.time(), sites)
