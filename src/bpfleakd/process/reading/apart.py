"""Lets another process read (server.py), and waits for it within limits (patience.py).

A thread is not enough: a process ends, and releases its locks and ports, only with its last thread; and a
thread that waits for a page of a file system does not end.

Rules:
- A caller that has waited for too long abandons the server, and a new one serves the others. The abandoned
  server ends with its read.
- A process for which a server waits gets no other. There are at most `USER_SERVERS_MAX` such servers per
  user, and `SERVERS_MAX` in total; beyond that, the processes of that user, or all but root's, are not read.
- Descriptors belong to the daemon: with each server, they refer to the address space for which they were
  opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import structlog
from msgspec import Struct

from bpfleakd.process.identity import effective_uid
from bpfleakd.process.reading.patience import Patience, instance_now
from bpfleakd.process.reading.reads import using
from bpfleakd.process.reading.server import BUFFER_BYTES, PAYLOAD_BYTES_MAX
from bpfleakd.process.reading.server_link import Ended, NoAnswer, ServerLink

T = TypeVar("T")
_Wait = Callable[[float], bool]

USER_SERVERS_MAX = 4
SERVERS_MAX = 16
# An idle daemon has no server.
IDLE_S = 60.0
# A server that waits for nothing ends within this time.
_END_S = 0.2

log = structlog.get_logger()


class _Abandoned(Struct, frozen=True):
    """A server that waits for a process."""

    link: ServerLink
    pid: int
    instance: str | None
    uid: int | None


class ReadsApart:
    """Reads in another process. Thread-safe; one read at a time."""

    def __init__(self, uid_of: Callable[[int], int | None] = effective_uid) -> None:
        self._uid_of = uid_of
        self._lock = threading.Lock()
        self._patience = Patience()
        self._link: ServerLink | None = None
        self._abandoned: list[_Abandoned] = []
        self._used_s = 0.0

    def open(self, pid: int, path: str, flags: int) -> int:
        return self._do(pid, lambda link, wait: link.open(os.fsencode(path), flags, wait))

    def open_below(self, pid: int, root: str, path: str, flags: int) -> tuple[int, int, int]:
        names = os.fsencode(root), os.fsencode(path)
        return self._do(pid, lambda link, wait: link.open_below(*names, flags, wait))

    def read_at(self, pid: int, descriptor: int, size_bytes: int, place: int) -> bytes:
        return self._in_parts(pid, size_bytes, place, lambda link, *part: link.read_at(descriptor, *part))

    def read_memory(self, pid: int, descriptor: int, size_bytes: int, address: int) -> bytes:
        return self._in_parts(
            pid, size_bytes, address, lambda link, *part: link.read_memory(pid, descriptor, *part)
        )

    def read_words(self, pid: int, descriptor: int, kind: int, request: bytes) -> bytes:
        return self._do(pid, lambda link, wait: link.read_words(descriptor, kind, request, wait))

    def read_on(self, pid: int, descriptor: int, size_bytes: int) -> bytes:
        return self._do(pid, lambda link, wait: link.read_on(descriptor, min(size_bytes, BUFFER_BYTES), wait))

    def read_file(self, pid: int, path: str, size_bytes: int) -> bytes:
        wanted = min(size_bytes, BUFFER_BYTES)
        return self._do(pid, lambda link, wait: link.read_file(os.fsencode(path), wanted, wait))

    def write_at(self, pid: int, descriptor: int, data: bytes, place: int) -> int:
        part = data[:PAYLOAD_BYTES_MAX]
        return self._do(pid, lambda link, wait: link.write_at(descriptor, part, place, wait))

    def read_pieces(self, pid: int, pieces: bytes, address: int, size_bytes: int) -> int:
        data = self._do(pid, lambda link, wait: link.read_pieces(pid, pieces, wait))
        ctypes.memmove(address, data, min(len(data), size_bytes))
        return min(len(data), size_bytes)

    def close(self, descriptor: int) -> None:
        with self._lock:
            if self._link is not None:
                self._link.forget(descriptor)
        os.close(descriptor)

    def is_silent(self, pid: int) -> bool:
        return self._patience.is_silent(pid)

    def end(self) -> None:
        """End the servers; those that wait end later by themselves."""
        with self._lock:
            self._close_link()
            deadline_s = time.monotonic() + _END_S
            for each in self._abandoned:
                each.link.is_over(max(0.0, deadline_s - time.monotonic()))

    def close_idle(self) -> None:
        with self._lock:
            if time.monotonic() - self._used_s > IDLE_S:
                self._close_link()

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link.is_over(_END_S)
            self._link = None

    def _in_parts(
        self, pid: int, size_bytes: int, place: int, read: Callable[[ServerLink, int, int, _Wait], bytes]
    ) -> bytes:
        parts: list[bytes] = []
        for at in range(0, size_bytes, BUFFER_BYTES):
            wanted = min(size_bytes - at, BUFFER_BYTES)
            try:
                parts.append(self._do(pid, partial(_part, read, wanted, place + at)))
            except OSError:
                if not parts:
                    raise
                break
            if len(parts[-1]) < wanted:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _do(self, pid: int, work: Callable[[ServerLink, _Wait], T]) -> T:
        with self._lock:
            if self._patience.is_silent(pid) or self._has_enough_servers(pid):
                raise _silent(pid)
            for _attempt in range(2):
                link = self._link = self._link or ServerLink()
                self._used_s = time.monotonic()
                try:
                    return work(link, lambda waited_s: self._patience.wait(pid, waited_s))
                except Ended:
                    # The server was killed, by somebody or for lack of memory: the process is not to blame.
                    self._close_link()
                except NoAnswer as error:
                    self._abandon(link, pid, str(error))
                    break
            raise _silent(pid)

    def _has_enough_servers(self, pid: int) -> bool:
        if not self._abandoned:
            return False
        self._abandoned = [each for each in self._abandoned if not each.link.is_over()]
        if any(each.pid == pid and each.instance == instance_now(pid) for each in self._abandoned):
            self._patience.silence(pid)
            return True
        uid = self._uid_of(pid)
        of_user = sum(each.uid == uid for each in self._abandoned)
        return uid != 0 and (of_user >= USER_SERVERS_MAX or len(self._abandoned) >= SERVERS_MAX)

    def _abandon(self, link: ServerLink, pid: int, reason: str) -> None:
        link.close()
        self._link = None
        self._patience.silence(pid)
        self._abandoned.append(_Abandoned(link, pid, instance_now(pid), self._uid_of(pid)))
        log.warning("memory.does-not-answer", pid=pid, reason=reason, waiting=len(self._abandoned))


def _part(
    read: Callable[[ServerLink, int, int, _Wait], bytes],
    size_bytes: int,
    place: int,
    link: ServerLink,
    wait: _Wait,
) -> bytes:
    return read(link, size_bytes, place, wait)


def _silent(pid: int) -> TimeoutError:
    return TimeoutError(errno.ETIMEDOUT, f"the memory of process {pid} does not answer")


@contextlib.contextmanager
def read_apart() -> Iterator[None]:
    """Read in another process within this context."""
    apart = ReadsApart()
    with using(apart):
        try:
            yield
        finally:
            apart.end()
