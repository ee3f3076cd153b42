"""Opens files whose file system may not answer (FUSE, NFS): a thread does, and callers wait briefly.

An open or read without an answer ends only with the server. Rules:
- A caller waits at most `WAIT_S`, then gets TimeoutError. A later call returns the file that the thread
  opened, and so does every call within `_KEPT_S`, since an attach repeats its calls until all files of the
  process are open.
- After a process has kept callers waiting for too long, they do not wait for it for a while (patience.py).
- One thread at a time opens for a process, `THREADS_MAX` for all.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.reading.patience import Patience, instance_now
from bpfleakd.threads import begin_thread

T = TypeVar("T")

WAIT_S = 0.05
THREADS_MAX = 16
# A file that nobody has requested for this long is closed.
_KEPT_S = 60.0


class _Opening(Generic[T]):
    """An open(2) in a separate thread, and its result."""

    def __init__(self, open_file: Callable[[], T]) -> None:
        self.asked_s = time.monotonic()
        self._open_file: Callable[[], T] | None = open_file
        self._file: T | None = None
        self._error: OSError | None = None
        self._opened = threading.Event()
        begin_thread("slow-open", self._run)

    def wait(self, wait_s: float) -> bool:
        """Whether it ends within this time."""
        return self._opened.wait(wait_s)

    @property
    def has_failed(self) -> bool:
        """Whether it ended without a file."""
        return self._opened.is_set() and self._file is None

    def result(self) -> T:
        """The opened file. Raises OSError."""
        if self._file is None:
            raise self._error or OSError(errno.EIO, "the file was not opened")
        return self._file

    def _run(self) -> None:
        try:
            assert self._open_file is not None
            self._file = self._open_file()
        except OSError as error:
            self._error = error
        finally:
            self._open_file = None
            self._opened.set()


class SlowFiles(Generic[T]):
    """`open_file` opens the file of a mapping of a process, for its owner. Thread-safe.

    `instance_of` distinguishes processes with the same pid.
    """

    def __init__(
        self,
        open_file: Callable[[int, Mapping, str], T],
        instance_of: Callable[[int], str | None] = instance_now,
    ) -> None:
        self._open_file = open_file
        self._instance_of = instance_of
        self._patience = Patience(instance_of=instance_of)
        self._lock = threading.Lock()
        self._openings: dict[tuple[str, str, int], _Opening[T]] = {}

    def open(self, pid: int, mapping: Mapping, owner: str) -> T:
        """Open a file. Raises OSError; TimeoutError as long as there is no answer."""
        file = (self._instance_of(pid) or owner, mapping.device, mapping.inode)
        with self._lock:
            opening = self._openings.get(file) or self._begin(file, pid, mapping, owner)
        if opening is None or not self._is_done(opening, pid):
            raise TimeoutError(errno.ETIMEDOUT, f"the file system of {mapping.path} does not answer")
        opening.asked_s = time.monotonic()
        if opening.has_failed:
            with self._lock:
                self._openings.pop(file, None)
        return opening.result()

    def close_idle(self) -> None:
        """Close files that nobody has requested recently."""
        if not self._openings:
            return
        due_s = time.monotonic() - _KEPT_S
        with self._lock:
            self._openings = {
                file: each
                for file, each in self._openings.items()
                if each.asked_s > due_s or not each.wait(0.0)
            }

    def _is_done(self, opening: _Opening[T], pid: int) -> bool:
        """Wait for it, unless the process has kept callers waiting for too long."""
        if opening.wait(0.0):
            return True
        with self._lock:
            if self._patience.is_silent(pid):
                return False
        began_s = time.monotonic()
        is_done = opening.wait(WAIT_S)
        with self._lock:
            self._patience.wait(pid, time.monotonic() - began_s)
        return is_done

    def _begin(
        self, file: tuple[str, str, int], pid: int, mapping: Mapping, owner: str
    ) -> _Opening[T] | None:
        """Start opening a file; None if threads wait for this process, or too many for others."""
        waiting = [key for key, each in self._openings.items() if not each.wait(0.0)]
        if len(waiting) >= THREADS_MAX or any(key[0] == file[0] for key in waiting):
            return None
        opening = self._openings[file] = _Opening(lambda: self._open_file(pid, mapping, owner))
        return opening
