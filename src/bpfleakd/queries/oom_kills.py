"""Records processes that the kernel killed because memory had run out.

A traced victim ends like any other process: its tables are in the kernel and outlive it. Its last report is
marked and gets its last bill; its largest call sites go to the log. For a victim that was only watched there
is the bill.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import structlog

from bpfleakd.analysis.bill import growth_summary
from bpfleakd.model.address_space import BillLine
from bpfleakd.model.oom import OomKill, OomVictim
from bpfleakd.model.process import ProcessId, ProcessState, ProcessSummary, TracingMode
from bpfleakd.model.report import LeakReport, SiteReport
from bpfleakd.printable import printable
from bpfleakd.queries.last_bills import Bill, LastBills
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.tracer import Tracer
from bpfleakd.units import human_bytes

log = structlog.get_logger()

PROC = Path("/proc")

_SITES_LOGGED = 3
_BILL_LINES_LOGGED = 3
# Victims whose end has not been noticed yet, for seconds at most.
_WAITING_MAX = 256
# The share of the time for bills of traced processes, and of watched ones.
_TRACED_SHARE, _WATCHED_SHARE = 0.002, 0.001


class OomSource(Protocol):
    """The victims since the last call (kernel.oom_events.OomEvents)."""

    def read(self) -> list[OomVictim]: ...


class OomKills(TracingObserver):
    """Reads victims at each tick, and at each end of a traced process.

    It must be notified before the makers of the last report. `last_reading` returns the last process that had
    a pid and its anonymous bytes, if it was watched; `keep` stores the report of one that was not traced.
    """

    def __init__(
        self,
        source: OomSource | None,
        tracer: Tracer,
        last_reading: Callable[[int], tuple[ProcessId, int] | None],
        keep: Callable[[ProcessId, LeakReport], None],
        proc: Path = PROC,
    ) -> None:
        self._source = source
        self._tracer = tracer
        self._last_reading = last_reading
        self._keep = keep
        self._proc = proc
        self._traced_bills = LastBills(_TRACED_SHARE, tracer.clock_ns, self._room_of)
        self._watched_bills = LastBills(_WATCHED_SHARE, tracer.clock_ns, self._room_of)
        self._victims: OrderedDict[int, OomVictim] = OrderedDict()
        self.total = 0
        """How many victims were traced or watched."""

    # Traced processes.

    def collected(self, view: ProcessView) -> None:
        """Make a bill, if the process has changed."""
        traced = view.traced
        process = traced.attachment.process.id
        anonymous_bytes = traced.anonymous_bytes
        if anonymous_bytes is None or traced.is_gone:
            return
        attached_s = (view.clock_ns() - traced.since.attached_ns) / 1e9
        self._traced_bills.note(
            process,
            anonymous_bytes,
            lambda: self._tracer.memory.quick_bill(
                process.pid, view.space, traced.heap.heap, attached_s=attached_s, go=traced.go
            ),
        )

    def bills(self) -> dict[int, tuple[BillLine, ...]]:
        """The last bills of the traced processes, by pid."""
        running = self._tracer.processes.running.values()
        found = {traced.pid: self._traced_bills.get(traced.attachment.process.id) for traced in running}
        return {pid: bill.lines for pid, bill in found.items() if bill is not None}

    def ending(self, view: ProcessView) -> None:
        """Mark a victim, before its last report is made."""
        traced = view.traced
        process = traced.attachment.process.id
        missing, bill = self._traced_bills.missing(process), self._traced_bills.take(process)
        if traced.state is not ProcessState.EXITED:
            return
        self._read()
        victim = self._victims.pop(traced.pid, None)
        if victim is not None:
            self.total += 1
            traced.state = ProcessState.OOM
            traced.oom = _kill(victim, bill, missing)

    def ended(self, traced: TracedProcess) -> None:
        """Log a victim, with its largest call sites."""
        if traced.oom is None:
            return
        sites = traced.final.sites[:_SITES_LOGGED] if traced.final is not None else ()
        totals = traced.table.totals
        log.warning(
            "process.oom-killed",
            pid=traced.pid,
            comm=traced.attachment.process.comm,
            traced=True,
            live_bytes=totals.live_bytes,
            anon_bytes=traced.oom.anon_bytes,
            sites=[_site_words(site) for site in sites],
            bill=_bill_words(traced.oom),
            bill_missing=traced.oom.bill_missing,
        )

    # Watched processes.

    def note_reading(self, process: ProcessId, anonymous_bytes: int) -> None:
        """Make a bill of a watched process, if it has changed."""
        if self._source is None or process.pid in self._tracer.processes.running:
            return
        self._watched_bills.note(
            process, anonymous_bytes, lambda: self._tracer.memory.quick_bill(process.pid)
        )

    def ticked(self, took_s: float) -> None:
        """Store reports of victims that are not traced."""
        self._read()
        running = self._tracer.processes.running
        for pid in [pid for pid in self._victims if pid not in running]:
            victim = self._victims.pop(pid)
            reading = self._last_reading(pid)
            if reading is not None:
                self._tell_of_watched(victim, *reading)

    def _tell_of_watched(self, victim: OomVictim, process: ProcessId, anonymous_bytes: int) -> None:
        self.total += 1
        missing = self._watched_bills.missing(process)
        kill = _kill(victim, self._watched_bills.take(process), missing)
        comm = victim.comm or _comm(self._proc, process.pid)
        report = LeakReport(_nothing_traced(process, comm), (), {}, oom=kill)
        self._keep(process, report)
        log.warning(
            "process.oom-killed",
            pid=process.pid,
            comm=comm,
            traced=False,
            anon_bytes=anonymous_bytes if kill.anon_bytes is None else kill.anon_bytes,
            bill=_bill_words(kill),
            bill_missing=kill.bill_missing,
        )

    def _read(self) -> None:
        """Read the victims; a thread counts for its process."""
        for victim in self._source.read() if self._source is not None else ():
            self._victims[_process_of(victim.pid, self._proc)] = victim
            while len(self._victims) > _WAITING_MAX:
                self._victims.popitem(last=False)

    def _room_of(self, process: ProcessId) -> int:
        return self._tracer.limits.room_bytes(process.pid)


def _process_of(tid: int, proc: Path) -> int:
    """The process of a thread; the tid itself if the thread has ended meanwhile."""
    try:
        status = (proc / str(tid) / "status").read_bytes()
        return int(status[status.index(b"\nTgid:") + 6 :].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return tid


def _comm(proc: Path, pid: int) -> str:
    try:
        return printable((proc / str(pid) / "comm").read_text(errors="surrogateescape").rstrip("\n"))
    except OSError:
        return ""


def _kill(victim: OomVictim, bill: Bill | None, missing: str | None) -> OomKill:
    return OomKill(
        anon_bytes=victim.anon_bytes,
        file_bytes=victim.file_bytes,
        shmem_bytes=victim.shmem_bytes,
        page_table_bytes=victim.page_table_bytes,
        bill=bill.lines if bill is not None else (),
        bill_age_s=round(max(0, victim.at_ns - bill.at_ns) / 1e9, 3) if bill is not None else None,
        growth_summary=growth_summary(bill.lines) if bill is not None else None,
        container=bill.container if bill is not None else None,
        bill_missing=missing,
    )


def _nothing_traced(process: ProcessId, comm: str) -> ProcessSummary:
    return ProcessSummary(
        pid=process.pid,
        comm=comm,
        exe="",
        live_bytes=0,
        live_count=0,
        attached_s=0.0,
        mode=TracingMode.WATCH,
        state=ProcessState.OOM,
        allocated_bytes=0,
        allocated_count=0,
        freed_count=0,
        unmatched_frees=0,
        growth_bytes_per_s=0.0,
        temporary_count=0,
        peak_live_bytes=0,
    )


def _site_words(site: SiteReport) -> str:
    return f"{human_bytes(site.live_bytes)} {site.function or '[unknown]'} ({site.verdict})"


def _bill_words(kill: OomKill) -> list[str]:
    return [f"{human_bytes(line.bytes)} {line.kind}" for line in kill.bill[:_BILL_LINES_LOGGED]]
