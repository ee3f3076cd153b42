"""Observers of tracing: verdicts, reports and figures, which the tracing code itself does not know."""

from __future__ import annotations

from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess


class TracingObserver:
    """Receives every notification in the tracing thread and ignores it; override the wanted ones."""

    def attached(self, traced: TracedProcess) -> None:
        """The recording of a process has started."""

    def collected(self, view: ProcessView) -> None:
        """A tick has updated the table of a process."""

    def exited(self, view: ProcessView) -> None:
        """A process has exited; it is kept for a moment if requested names are missing."""

    def ending(self, view: ProcessView) -> None:
        """The recording of a process has ended; its tables are dropped after this."""

    def ended(self, traced: TracedProcess) -> None:
        """The tables of a process have been dropped."""

    def ticked(self, took_s: float) -> None:
        """All processes have been read; that took `took_s` seconds."""
