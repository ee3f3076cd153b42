"""Threads, and idle priority (SCHED_IDLE) for the work of one that nobody waits for.

The kernel runs an idle thread where no program wants the core, and interrupts it as soon as one does. At
usual priority, a tick of 5 ms interrupts a busy server dozens of times, for a fraction of a millisecond each:
its slowest answers take longer.

Rules:
  - A thread or process that an idle thread starts is idle as well, for ever. So the thread returns to its
    usual priority while it starts one (`begin_thread`, `usual_priority`).
  - The same while it adds or removes breakpoints: the kernel holds locks then for which every fork of the
    machine and every mmap of the program wait (dup_mmap_sem in kernel/events/uprobes.c).
  - While programs want all cores, an idle thread hardly runs, and it may hold the interpreter's lock: whoever
    uses this limits the time.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_PARAMETERS = os.sched_param(0)
_of_thread = threading.local()


def begin_thread(name: str, target: Callable[..., object], *args: object) -> threading.Thread:
    """Start a thread that does not keep the daemon from ending."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    with usual_priority():
        thread.start()
    return thread


@contextlib.contextmanager
def usual_priority() -> Iterator[None]:
    """Run the calling thread at its usual priority while it does what an idle one must not do."""
    priority: IdlePriority | None = getattr(_of_thread, "priority", None)
    if priority is None:
        yield
        return
    # A block inside of this one changes nothing.
    _of_thread.priority = None
    priority.suspend()
    try:
        yield
    finally:
        _of_thread.priority = priority
        priority.resume()


def lower(thread_id: int) -> None:
    """Give a thread, 0 for the calling one, idle priority."""
    _set_class(thread_id, os.SCHED_IDLE)


def restore(thread_id: int) -> None:
    """Return a thread, 0 for the calling one, to its usual priority."""
    _set_class(thread_id, os.SCHED_OTHER)


def waited_for_core_ns() -> int:
    """How long the calling thread was ready to run, but had no core; 0 if the kernel does not count it."""
    try:
        # CONFIG_SCHED_INFO: the time on a core, the time of waiting for one, both in ns, the number of turns.
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def is_idle() -> bool:
    """Whether the calling thread has idle priority."""
    return os.sched_getscheduler(0) == os.SCHED_IDLE


def _set_class(thread_id: int, scheduling_class: int) -> None:
    # It may have ended, or changed its user.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.sched_setscheduler(thread_id, scheduling_class, _PARAMETERS)


class IdlePriority:
    """The priority of one thread at a time; it stays as it is unless `may_be_idle`."""

    def __init__(self) -> None:
        self._is_possible = may_be_idle()
        self._thread_id: int | None = None
        self._is_over = False

    @contextlib.contextmanager
    def lowered(self) -> Iterator[None]:
        """Run the calling thread at idle priority until the block ends, or `end`."""
        if not self._is_possible:
            yield
            return
        self._is_over = False
        self._thread_id = threading.get_native_id()
        _of_thread.priority = self
        lower(0)
        try:
            yield
        finally:
            _of_thread.priority = None
            self.end()
            self._thread_id = None

    def end(self) -> None:
        """Return the thread to its usual priority, if it is `lowered`; from any thread."""
        self._is_over = True
        self.suspend()

    def suspend(self) -> None:
        """The same, until `resume`."""
        thread_id = self._thread_id
        if thread_id is not None:
            restore(thread_id)

    def resume(self) -> None:
        """Lower the calling thread again, unless `end` was called."""
        lower(0)
        # Lowered first: an `end` meanwhile either is seen here, or comes later.
        if self._is_over:
            self.suspend()


@functools.cache
def may_be_idle() -> bool:
    """Whether threads can return from idle priority, and the user gave this process no scheduling class.

    It takes CAP_SYS_NICE, or RLIMIT_NICE (LimitNICE=+0 of systemd).
    """
    return os.sched_getscheduler(0) == os.SCHED_OTHER and _may_return()


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
