"""How the daemon notices processes: by the kernel's events, or without them by scans of /proc.

A separate thread reads, and only queues. Rules:
  - The queue is bounded. Events that do not fit are a gap, as are events that the kernel had to drop: the
    daemon then checks all processes, so a gap costs time but no correctness.
  - A subscription that breaks is replaced by scans at once, and tried again at times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from bpfleakd import errors
from bpfleakd.model.process_events import ProcessChange, ProcessEvent

log = structlog.get_logger()

_QUEUE_MAX = 65_536
_RETRY_S = 30.0
_READ_TIMEOUT_S = 0.5
# Collect events in bursts of hundreds: a switch of threads costs ten times as much as an event. Processes
# that need not be traced from their start can wait, and most short processes begin and end within one batch.
_GATHER_S = 0.005
_GATHER_WITHOUT_HURRY_S = 0.1
_MANY = 256
_STOP_TIMEOUT_S = 5.0


class ProcessEventSource(Protocol):
    """A subscription to process events (kernel.process_events.ProcessEvents)."""

    def read(self, timeout_s: float) -> Sequence[ProcessEvent]: ...
    def close(self) -> None: ...


class ProcessEventFeed:
    """Reads in a thread from `start` to `stop`, which calls `wake` when the queue is no longer empty.

    `subscribe` opens the events (None: never), `scan` returns the changes in /proc.
    """

    def __init__(
        self,
        subscribe: Callable[[], ProcessEventSource] | None,
        scan: Callable[[], Sequence[ProcessEvent]],
        scan_s: float,
        wake: Callable[[], object],
        *,
        queue_max: int = _QUEUE_MAX,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._subscribe = subscribe
        self._scan = scan
        self._scan_s = scan_s
        self._wake = wake
        self._queue_max = queue_max
        self._retry_s = retry_s
        self._lock = threading.Lock()
        self._queue: list[ProcessEvent] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-events", daemon=True)
        # Whether a process may have to be attached to at its start.
        self.is_urgent = True
        self.source = "none"
        self.events_total = 0
        self.gaps_total = 0

    def start(self) -> None:
        """Subscribe or begin to scan."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def take(self) -> list[ProcessEvent]:
        """The queued events since the last call, oldest first. Events before a GAP are obsolete."""
        with self._lock:
            taken, self._queue = self._queue, []
        return taken

    def put(self, events: Sequence[ProcessEvent]) -> None:
        """Queue events, or one GAP in place of everything if there is no room."""
        if not events:
            return
        with self._lock:
            was_empty = not self._queue
            self._queue += events
            lost = any(event.change is ProcessChange.GAP for event in events)
            if len(self._queue) > self._queue_max:
                self._queue = [ProcessEvent(ProcessChange.GAP)]
                lost = True
        self.events_total += len(events)
        if lost:
            self.gaps_total += 1
            log.warning("process-events.gap", gaps=self.gaps_total, source=self.source)
        if was_empty:
            self._wake()

    def _look_at_all(self) -> None:
        with self._lock:
            self._queue = [ProcessEvent(ProcessChange.GAP)]
        self._wake()

    # In the thread.

    def _run(self) -> None:
        while not self._stop.is_set():
            subscription = self._open()
            try:
                if subscription is not None:
                    self._read(subscription)
                else:
                    self._scan_for(self._retry_s)
            except Exception as error:
                # No error may end the only thread that notices processes.
                log.warning("process-events.source-failed", source=self.source, reason=str(error))
                self._stop.wait(self._scan_s)
            finally:
                if subscription is not None:
                    subscription.close()

    def _open(self) -> ProcessEventSource | None:
        if self._subscribe is None:
            self._use("scan")
            return None
        try:
            subscription = self._subscribe()
        except errors.BpfleakdError as error:
            self._use("scan", reason=error.message, hint=error.hint)
            return None
        self._use("events")
        return subscription

    def _read(self, subscription: ProcessEventSource) -> None:
        # Earlier events are not reported.
        self._look_at_all()
        while not self._stop.is_set():
            events = subscription.read(_READ_TIMEOUT_S)
            self.put(events)
            if events and len(events) < _MANY:
                self._stop.wait(_GATHER_S if self.is_urgent else _GATHER_WITHOUT_HURRY_S)

    def _scan_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (self._subscribe is None or time.monotonic() < until):
            self.put(self._scan())
            self._stop.wait(self._scan_s)

    def _use(self, source: str, **why: str) -> None:
        if source != self.source:
            self.source = source
            log.info(
                "process-events.source",
                source=source,
                every_s=self._scan_s if source == "scan" else None,
                **why,
            )
