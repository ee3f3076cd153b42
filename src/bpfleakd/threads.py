"""Threads, and idle priority (SCHED_IDLE) for the work of one that nobody waits for.

The kernel runs an idle thread where no program wants the core, and interrupts it as soon as one does. At
usual priority, a tick of 5 ms interrupts a busy server dozens of times, for a fraction of a millisecond each:
its slowest answers take longer.

Rules:
  - A thread or process that an idle thread starts is idle as well, for ever. So the thread returns to its
    usual priority before it starts one (`begin_thread`, `usual_priority`).
  - While programs want all cores, an idle thread hardly runs, and it may hold the interpreter's lock: whoever
    uses this limits the time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

_PARAMETERS = os.sched_param(0)
_of_thread = threading.local()


def begin_thread(name: str, target: Callable[..., object], *args: object) -> threading.Thread:
    """Start a thread that does not keep the daemon from ending."""
    usual_priority()
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    thread.start()
    return thread


def usual_priority() -> None:
    """Return the calling thread to its usual priority, before it starts a thread or a process."""
    priority = getattr(_of_thread, "priority", None)
    if priority is not None:
        priority.end()


class IdlePriority:
    """The priority of one thread at a time.

    A thread can only return from idle priority with CAP_SYS_NICE, or RLIMIT_NICE (LimitNICE=+0 of systemd).
    Without, or if the user gave the process another scheduling class, threads stay as they are.
    """

    def __init__(self) -> None:
        self._is_possible = os.sched_getscheduler(0) == os.SCHED_OTHER and _may_return()
        self._thread_id: int | None = None

    @contextlib.contextmanager
    def lowered(self) -> Iterator[None]:
        """Run the calling thread at idle priority until the block ends, or `end`."""
        if not self._is_possible:
            yield
            return
        self._thread_id = threading.get_native_id()
        _of_thread.priority = self
        os.sched_setscheduler(0, os.SCHED_IDLE, _PARAMETERS)
        try:
            yield
        finally:
            _of_thread.priority = None
            self.end()
            self._thread_id = None

    def end(self) -> None:
        """Return the thread to its usual priority, if it is `lowered`; from any thread."""
        thread_id = self._thread_id
        if thread_id is not None:
            # It may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread_id, os.SCHED_OTHER, _PARAMETERS)


def _may_return() -> bool:
    """Whether a thread can return from idle priority: one tries."""
    returned: list[bool] = []

    def attempt() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, _PARAMETERS)
            os.sched_setscheduler(0, os.SCHED_OTHER, _PARAMETERS)
            returned.append(True)

    begin_thread("priority", attempt).join()
    return bool(returned)
