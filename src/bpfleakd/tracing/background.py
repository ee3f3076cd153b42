"""Long work on processes, outside of the tracing loop: one job at a time per process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from bpfleakd.threads import begin_thread

log = structlog.get_logger()


class Background:
    """Threads called `name`, at most `threads_max`, which end with their jobs."""

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._lock = threading.Lock()
        self._running: dict[str, threading.Event] = {}

    def do(self, owner: str, job: Callable[[], None], wait_s: float) -> bool:
        """Start a job of a process, unless it has one; returns whether that is done within `wait_s`.

        If other processes have too many jobs, it is not started.
        """
        with self._lock:
            done = self._running.get(owner) or self._started(owner, job)
        return done is not None and done.wait(wait_s)

    def begin(self, owner: str, job: Callable[[], None]) -> bool:
        """Start a job of a process; returns False if it has one already, or if others have too many."""
        with self._lock:
            return owner not in self._running and self._started(owner, job) is not None

    def _started(self, owner: str, job: Callable[[], None]) -> threading.Event | None:
        if len(self._running) >= self._threads_max:
            return None
        done = self._running[owner] = threading.Event()
        begin_thread(self._name, self._run, owner, job, done)
        return done

    def _run(self, owner: str, job: Callable[[], None], done: threading.Event) -> None:
        try:
            job()
        except Exception:
            log.exception(f"{self._name}.failed", owner=owner)
        finally:
            with self._lock:
                del self._running[owner]
            done.set()
