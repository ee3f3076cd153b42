"""Finds out, beside the tracing loop, whether the file systems answer that a process has files of.

A server that is gone (NFS), or that refuses to answer (FUSE), blocks a process that opens one of its files in
the kernel, where only SIGKILL ends it. So before the loop opens a file of a process for the first time, a
thread does, which may wait as long as necessary.

Rules:
- Files of the local file systems of this machine (local_devices.py) are not waited for.
- One thread a process; those that hang use up the turns of other processes with such files, and of no others.
- An answer holds for a while. It says nothing of a server that answers at first and then does not: what is
  opened later is left out then (slow_files.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from bpfleakd import errors
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.local_devices import LocalDevices, device_number
from bpfleakd.process.files.mapped_files import open_mapped_waiting
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.tracing.background import Background

__all__ = ["WAIT_S", "FileSystems"]

_THREADS_MAX = 16
_ANSWERS_MAX = 4096
# Of the loop's time for one process; one that has answered before does so within a millisecond.
WAIT_S = 0.05
# An attach is tried again within less.
_GOOD_FOR_S = 60.0


class FileSystems:
    """Remembers which answered; used from the tracing thread. `touch` opens a mapped file of a process."""

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
        self, pid: int, owner: str, mappings: Iterable[Mapping], wait_s: float = WAIT_S
    ) -> None:
        """Return once every file system of the files that a process executes code of has answered.

        `owner` stands for the process. Raises NotYet if one does not within `wait_s`, then call it again.
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
        """One mapping of code for each file system that could keep us waiting."""
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
            # That it cannot be opened is an answer, too.
            with contextlib.suppress(OSError):
                self._touch(pid, mapping, owner)
            with self._lock:
                self._answered_s.put((owner, mapping.device), time.monotonic())
