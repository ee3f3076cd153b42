"""Follows the code of a JVM while it is traced.

A thread reads it; a tick starts the reading and processes the result.

Rules:
- One reading at a time. A tick starts it and waits a moment for its result; if that is too short, a later
  tick gets it. A reading looks at the map of segments, which takes some hundred microseconds. If blocks have
  come or gone, it reads the blobs, too: 10 ms for 5,000.
- Every `_WHOLE_NS` all code is read again: other code of the same size may have replaced some, which leaves
  the map as it was.
- After a reading there is a pause of `_SHARE` times its length, which limits the share of a processor.
- The thread has its own access to the memory and closes it itself if it is at work.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

import structlog
from msgspec import Struct

from bpfleakd import errors
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.code_cache import CodeCache, CodeSnapshot, is_same_code
from bpfleakd.runtimes.jvm.layout import JvmLayout
from bpfleakd.runtimes.jvm.unwinding import code_tables
from bpfleakd.threads import begin_thread
from bpfleakd.unwind.table import UnwindTable

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000
_WHOLE_NS = 10 * _NS_PER_S
_SHARE = 50
# Most readings take less; a process that does not answer is waited for once.
_WAIT_S = 0.02
_FAILURES_MAX = 10


class CodeReading(Struct, frozen=True):
    """The result of one reading; `tables` unwind the code."""

    snapshot: CodeSnapshot
    tables: Sequence[UnwindTable]


class JavaCode:
    """The code of one process. Until `first` has read it, stacks are cut off at Java frames."""

    def __init__(self, pid: int, layout: JvmLayout) -> None:
        """Raises OSError if the process has ended."""
        self._layout = layout
        self._memory = RemoteMemory(pid)
        self._cache = CodeCache(pid, self._memory, layout)
        self._last = CodeSnapshot(())
        self._answers: queue.SimpleQueue[tuple[CodeReading | None, int]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Whether the thread is running, and whether its answer is still to be fetched.
        self._is_working = self._is_reading = self._is_closed = False
        self._due_ns = self._whole_due_ns = 0
        self._failures = 0
        self._reason: str | None = None

    @property
    def failure(self) -> str | None:
        """Why the code is no longer read; None while it is read."""
        return self._reason if self._failures >= _FAILURES_MAX else None

    def first(self) -> CodeReading | None:
        """Read all code at the attach, and wait for it; None if there is none yet."""
        try:
            return self._found(is_whole=True)
        except (OSError, ValueError, errors.BpfleakdError) as error:
            log.info("jvm.code-not-read", reason=str(error))
            return None

    def refresh(self, now_ns: int) -> CodeReading | None:
        """Start a reading if it is due, and return a finished one."""
        has_begun = not self._is_reading and now_ns >= self._due_ns and self._failures < _FAILURES_MAX
        if has_begun:
            self._is_reading = self._is_working = True
            is_whole = now_ns >= self._whole_due_ns
            if is_whole:
                self._whole_due_ns = now_ns + _WHOLE_NS
            begin_thread("java-code", self._read, is_whole)
        try:
            found, took_ns = self._answers.get(timeout=_WAIT_S if has_begun else 0.0)
        except queue.Empty:
            return None
        self._is_reading = False
        self._due_ns = now_ns + _SHARE * took_ns
        return found

    def close(self) -> None:
        """Stop reading."""
        with self._lock:
            self._is_closed = True
            if not self._is_working:
                self._memory.close()

    def _read(self, is_whole: bool) -> None:
        found: CodeReading | None = None
        try:
            found = self._found(is_whole)
            self._failures = 0
        except (OSError, ValueError, errors.BpfleakdError) as error:
            # The process has ended, or is about to, which the tracer notices.
            self._reason = str(error)
            self._failures += 1
            log.debug("jvm.code-not-read", reason=str(error))
        except Exception as error:
            # It reads data that the process controls.
            self._reason = type(error).__name__
            self._failures = _FAILURES_MAX
            log.exception("jvm.code-not-read")
        finally:
            # All processor time of this thread, without its waits.
            self._answers.put((found, time.thread_time_ns()))
            with self._lock:
                self._is_working = False
                if self._is_closed:
                    self._memory.close()

    def _found(self, is_whole: bool) -> CodeReading | None:
        snapshot = self._cache.read(None if is_whole else self._last)
        if snapshot is self._last:
            return None
        is_known = is_same_code(snapshot, self._last)
        self._last = snapshot
        if is_known:
            return None
        return CodeReading(snapshot, code_tables(snapshot))
