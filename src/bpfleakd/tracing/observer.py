"""Observers of the tracing: verdicts, reports and figures, which tracing itself does not know."""

from __future__ import annotations

from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess

__all__ = ["TracingObserver"]


class TracingObserver:
    """Gets every notification in the tracing thread, and ignores it: override the wanted ones."""

    def attached(self, traced: TracedProcess) -> None:
        """A process is being recorded."""

    def collected(self, view: ProcessView) -> None:
        """A tick has brought the table of a process up to now."""

    def exited(self, view: ProcessView) -> None:
        """A process has exited, and is kept for a moment if requested names are still to come."""

    def ending(self, view: ProcessView) -> None:
        """A process is not recorded any more, and its tables are dropped after this."""

    def ended(self, traced: TracedProcess) -> None:
        """The tables of a process are gone."""

    def ticked(self, took_s: float) -> None:
        """All processes were read, in so many seconds."""
