"""Connections in the network namespace of a process: a container has its own localhost."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator

from bpfleakd.threads import begin_thread

_CLONE_NEWNET = 0x4000_0000
_OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def connected(pid: int, address: str, port: int, timeout_s: float) -> Iterator[socket.socket]:
    """A TCP connection to an address as the process sees it. Raises OSError."""
    theirs = f"/proc/{pid}/ns/net"
    if os.stat(theirs).st_ino == os.stat(_OWN).st_ino:
        connection = _connect(address, port, timeout_s)
    else:
        connection = _in_namespace(theirs, address, port, timeout_s)
    with connection:
        yield connection


def _connect(address: str, port: int, timeout_s: float) -> socket.socket:
    connection = socket.create_connection((address, port), timeout_s)
    connection.settimeout(None)
    return connection


def _in_namespace(namespace: str, address: str, port: int, timeout_s: float) -> socket.socket:
    """Connect in a thread that enters the namespace and then ends, so no other thread enters it."""
    found: list[socket.socket | OSError] = []

    def work() -> None:
        try:
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(descriptor)
            found.append(_connect(address, port, timeout_s))
        except OSError as error:
            found.append(error)

    begin_thread("network-namespace", work).join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]
