"""Reads the code of processes; does not wait for file systems that do not answer.

A server that is gone (NFS), or that refuses to answer (FUSE), blocks a process that opens one of its files in
the kernel, where only SIGKILL ends it. So before the loop opens a file of a process for the first time, a
thread does, which may wait as long as necessary.

Rules:
- Files of this machine's local file systems (local_devices.py) need no check.
- There is one thread per process; hanging threads delay other processes with such files, but no others.
- An answer is valid for a while. A server may answer at first and then stop: files opened later are then left
  out (slow_files.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from bpfleakd import errors
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.process import ProcessId
from bpfleakd.process.files.local_devices import LocalDevices, device_number
from bpfleakd.process.files.mapped_files import open_mapped_waiting
from bpfleakd.process.files.process_code import ProcessCode, open_code
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import instance_of
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.tracing.background import Background

_THREADS_MAX = 16
_ANSWERS_MAX = 4096
# The loop's time for one process; a file system that answered before does so within a millisecond.
_WAIT_S = 0.05
# An attach is repeated within less.
_GOOD_FOR_S = 60.0
_PAUSE_S = 0.005


class ProcessCodeReader:
    """Reads the code of processes; used from the tracing thread."""

    def __init__(self) -> None:
        self._file_systems = FileSystems()

    def code_of(self, process: ProcessId, wait_s: float = _WAIT_S) -> ProcessCode:
        """The current code of a process.

        Raises NoSuchProcess, AccessDenied, or NotYet if a file system does not answer within `wait_s`.
        """
        due_s = time.monotonic() + wait_s
        while (code := self.code_so_far(process, wait_s)).unanswered:
            if time.monotonic() >= due_s:
                raise not_yet(code)
            time.sleep(_PAUSE_S)
        return code

    def code_so_far(self, process: ProcessId, wait_s: float = _WAIT_S) -> ProcessCode:
        """The same without the files that are still being read: see `unanswered`."""
        pid, owner = process.pid, process.instance
        mappings = read_mappings(pid)
        if instance_of(pid) != owner:
            raise errors.NoSuchProcess(f"process {pid} has exited and its PID was reused")
        self._file_systems.expect_answers(pid, owner, mappings, wait_s)
        return open_code(pid, mappings, owner)


def not_yet(code: ProcessCode) -> errors.NotYet:
    """The error to raise if an answer is needed."""
    return errors.NotYet(f"{code.unanswered} is still being read, or its file system does not answer")


class FileSystems:
    """Remembers which file systems answered; used from the tracing thread. `touch` opens a mapped file."""

    def __init__(
        self,
        touch: Callable[[int, Mapping, str], object] = open_mapped_waiting,
        is_local: Callable[[int], bool] | None = None,
    ) -> None:
        self._touch = touch
        self._is_local = is_local or LocalDevices().__contains__
        self._touches = Background("file-touch", _THREADS_MAX)
        self._answered_s: BoundedCache[tuple[str, str], float] = BoundedCache(_ANSWERS_MAX)
        self._lock = threading.Lock()

    def expect_answers(
        self, pid: int, owner: str, mappings: Iterable[Mapping], wait_s: float = _WAIT_S
    ) -> None:
        """Wait until every file system of the files whose code a process executes has answered.

        `owner` identifies the process. Raises NotYet if one does not answer within `wait_s`; then call it
        again.
        """
        unsure = [mapping for mapping in self._elsewhere(mappings) if not self._has_answered(owner, mapping)]
        if not unsure:
            return
        self._touches.do(owner, lambda: self._ask(pid, owner, unsure), wait_s)
        silent = [mapping.path for mapping in unsure if not self._has_answered(owner, mapping)]
        if silent:
            raise errors.NotYet(
                f"the file system of {silent[0]} does not answer, or others keep all threads waiting",
                "is its server running?",
            )

    def _elsewhere(self, mappings: Iterable[Mapping]) -> list[Mapping]:
        """One mapping of code for each file system that may block."""
        found: dict[str, Mapping] = {}
        for mapping in mappings:
            if mapping.executable and mapping.inode and not self._is_local(device_number(mapping.device)):
                found.setdefault(mapping.device, mapping)
        return list(found.values())

    def _has_answered(self, owner: str, mapping: Mapping) -> bool:
        with self._lock:
            answered_s = self._answered_s.get((owner, mapping.device))
        return answered_s is not None and time.monotonic() - answered_s < _GOOD_FOR_S

    def _ask(self, pid: int, owner: str, mappings: Sequence[Mapping]) -> None:
        for mapping in mappings:
            # A failure to open the file is an answer too.
            with contextlib.suppress(OSError):
                self._touch(pid, mapping, owner)
            with self._lock:
                self._answered_s.put((owner, mapping.device), time.monotonic())
