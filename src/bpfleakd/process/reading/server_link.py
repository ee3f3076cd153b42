"""The daemon's side of one server (server.py): requests, and replies with limits on the wait."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bpfleakd.process.reading import server
from bpfleakd.threads import usual_priority

# How often a late reply is checked; a wait below half of this is not charged.
_SLICE_S = 0.02
_SLOW_NS = 10_000_000
# A server that works all the time does answer; none of its requests takes this long.
_WORKING_MAX_S = 20.0


class NoAnswer(Exception):
    """The server waits, or has ended, and is unusable."""


class Ended(NoAnswer):
    """The server has ended."""


class ServerLink:
    """A server, started by the constructor. One request at a time."""

    def __init__(self) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        buffer = os.memfd_create("bpfleakd-read", os.MFD_CLOEXEC)
        try:
            os.ftruncate(buffer, server.BUFFER_BYTES)
            self._data = mmap.mmap(buffer, server.BUFFER_BYTES)
            with usual_priority():
                # Without the package and its libraries, it starts in a fifth of the time.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", server.__file__, str(theirs.fileno()), str(buffer)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), buffer],
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(buffer)
        seconds, microseconds = divmod(round(_SLICE_S * 1e6), 1_000_000)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, microseconds))
        self._socket = ours
        self._handles: set[int] = set()
        self._busy_s = 0.0
        self._is_ready = False

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Whether the process has ended, or ends within this time."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def open(self, path: bytes, flags: int, wait: Callable[[float], bool]) -> int:
        """A descriptor, as open(2) returns it. Raises OSError, NoAnswer."""
        return self._opened(server.OPEN, path, flags, wait)

    def _opened(self, kind: int, path: bytes, flags: int, wait: Callable[[float], bool]) -> int:
        self._send(kind, 0, flags, 0, path)
        _done, descriptors = self._received(
            wait, lambda: socket.recv_fds(self._socket, server.REPLY.size, 1)[:2]
        )
        return descriptors[0]

    def open_below(
        self, root: bytes, path: bytes, flags: int, wait: Callable[[float], bool]
    ) -> tuple[int, int, int]:
        """A descriptor, and the result of `server.file_system`. Raises OSError, NoAnswer."""
        descriptor = self._opened(server.OPEN_BELOW, root + b"\0" + path, flags, wait)
        return descriptor, *server.FILE_SYSTEM.unpack_from(self._data)

    def read_at(self, descriptor: int, size_bytes: int, place: int, wait: Callable[[float], bool]) -> bytes:
        """Read like pread(2), at most BUFFER_BYTES. Raises OSError, NoAnswer."""
        self._show(descriptor)
        return self._data[: self._ask(wait, server.READ_AT, descriptor, size_bytes, place)]

    def read_on(self, descriptor: int, size_bytes: int, wait: Callable[[float], bool]) -> bytes:
        """Read on in a file, at most BUFFER_BYTES; less only at its end. Raises OSError, NoAnswer."""
        self._show(descriptor)
        return self._data[: self._ask(wait, server.READ_ON, descriptor, size_bytes, 0)]

    def read_file(self, path: bytes, size_bytes: int, wait: Callable[[float], bool]) -> bytes:
        """Read the beginning of a file, at most BUFFER_BYTES. Raises OSError, NoAnswer."""
        return self._data[: self._ask(wait, server.READ_FILE, 0, size_bytes, 0, path)]

    def read_memory(
        self, pid: int, descriptor: int, size_bytes: int, address: int, wait: Callable[[float], bool]
    ) -> bytes:
        """Read memory of a process, if it is that of an open /proc/PID/mem. Raises OSError, NoAnswer."""
        self._show(descriptor)
        of = pid.to_bytes(8, "little")
        return self._data[: self._ask(wait, server.READ_MEMORY, descriptor, size_bytes, address, of)]

    def read_words(self, descriptor: int, kind: int, request: bytes, wait: Callable[[float], bool]) -> bytes:
        """The result of a request to `server.Words`. Raises OSError, NoAnswer."""
        self._show(descriptor)
        return self._data[: self._ask(wait, kind, descriptor, 0, 0, request)]

    def write_at(self, descriptor: int, data: bytes, place: int, wait: Callable[[float], bool]) -> int:
        """Write like pwrite(2). Raises OSError, NoAnswer."""
        self._show(descriptor)
        return self._ask(wait, server.WRITE_AT, descriptor, 0, place, data)

    def read_pieces(self, pid: int, pieces: bytes, wait: Callable[[float], bool]) -> bytes:
        """Read like process_vm_readv(2). Raises OSError, NoAnswer."""
        return self._data[: self._ask(wait, server.READ_PIECES, pid, 0, 0, pieces)]

    def forget(self, descriptor: int) -> None:
        """Forget a descriptor that the caller closes."""
        if descriptor in self._handles:
            self._handles.discard(descriptor)
            with contextlib.suppress(NoAnswer):
                self._send(server.CLOSE, descriptor, 0, 0)

    def close(self) -> None:
        """End the server, now or when it stops waiting; does not wait for that."""
        self._socket.close()
        self._process.kill()
        self._data.close()

    def _await_start(self) -> None:
        """Wait for Python to start, about 20 ms that no process is charged for."""
        if not self._is_ready:
            deadline_s = time.monotonic() + _WORKING_MAX_S
            self._received(lambda _waited_s: time.monotonic() < deadline_s, self._packet)
            self._is_ready = True

    def _show(self, descriptor: int) -> None:
        if descriptor not in self._handles:
            self._send(server.ADOPT, descriptor, 0, 0, descriptors=(descriptor,))
            self._handles.add(descriptor)

    def _ask(
        self,
        wait: Callable[[float], bool],
        kind: int,
        handle: int,
        size: int,
        place: int,
        payload: bytes = b"",
    ) -> int:
        self._send(kind, handle, size, place, payload)
        return self._received(wait, self._packet)[0]

    def _send(
        self,
        kind: int,
        handle: int,
        size: int,
        place: int,
        payload: bytes = b"",
        descriptors: tuple[int, ...] = (),
    ) -> None:
        self._await_start()
        packet = server.REQUEST.pack(kind, handle, size, place) + payload
        try:
            if descriptors:
                socket.send_fds(self._socket, [packet], descriptors)
            else:
                self._socket.send(packet)
        except OSError as error:
            raise Ended(str(error)) from error

    def _packet(self) -> tuple[bytes, list[int]]:
        return self._socket.recv(server.REPLY.size), []

    def _received(
        self, wait: Callable[[float], bool], receive: Callable[[], tuple[bytes, list[int]]]
    ) -> tuple[int, list[int]]:
        """`wait` receives the pure waiting time in seconds; if it returns False, this gives up."""
        began_s = since_s = time.monotonic()
        charged_s = busy_s = 0.0
        while True:
            try:
                packet, descriptors = receive()
                break
            except BlockingIOError:
                now_s = time.monotonic()
                more_busy_s = self._new_busy_s()
                waited_s = 0.0 if self._is_running() else max(0.0, now_s - since_s - more_busy_s)
                charged_s, busy_s, since_s = charged_s + waited_s, busy_s + more_busy_s, now_s
                if not wait(waited_s) or now_s - began_s > _WORKING_MAX_S:
                    raise NoAnswer("no answer in time") from None
            except OSError as error:
                raise Ended(str(error)) from error
        if not packet:
            raise Ended("it has ended")
        done, took_ns = server.REPLY.unpack(packet)
        if took_ns > _SLOW_NS:
            # Part of the time here, other programs may have run instead of this process.
            wait(max(0.0, took_ns / 1e9 - busy_s - self._new_busy_s() - charged_s))
        if done < 0:
            raise OSError(-done, os.strerror(-done))
        return done, descriptors

    def _new_busy_s(self) -> float:
        """How long the server ran, or was ready while other programs ran, since the last call."""
        try:
            schedule = Path(f"/proc/{self._process.pid}/schedstat").read_bytes()
            ran_ns, ready_ns, _slices = map(int, schedule.split())
        except (OSError, ValueError):
            return 0.0
        before_s, self._busy_s = self._busy_s, (ran_ns + ready_ns) / 1e9
        return self._busy_s - before_s

    def _is_running(self) -> bool:
        """Whether it runs or is ready; its ready time counts only once it runs again."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b") ")[2][:1] == b"R"
