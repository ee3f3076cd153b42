"""The diagnostics socket of a .NET process: commands, answers, sessions.

Rules:
- The target controls the path, through its environment and file system. Nothing is sent before the kernel has
  confirmed that the target is behind the socket (SO_PEERCRED).
- Every call has a deadline, because a stopped target never answers.
- A session ends with its connection: the runtime stops it at the first write that fails. So nothing remains
  in a target whose tracer was killed.
- This module only reads the answer to a command: a header and a number. A helper reads the stream after it
  (stream_jobs.py).

https://github.com/dotnet/diagnostics/blob/main/documentation/design-docs/ipc-protocol.md
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from bpfleakd.process.environment import read_environment
from bpfleakd.process.files.rooted_open import TargetRoot, root_of
from bpfleakd.runtimes.runtime import RuntimeFailure

TIMEOUT_S = 5.0
RUNTIME_PROVIDER = "Microsoft-Windows-DotNETRuntime"

_MAGIC = b"DOTNET_IPC_V1\0"
_HEADER = struct.Struct("<14sHBBH")
_EVENT_PIPE = 0x02
_STOP_TRACING, _COLLECT_TRACING, _COLLECT_TRACING_2 = 0x01, 0x02, 0x03
_SERVER, _OK, _ERROR = 0xFF, 0x00, 0xFF
_NETTRACE_FORMAT = 1
# DS_IPC_E_UNKNOWN_COMMAND: the runtime is older than the command.
_UNKNOWN_COMMAND = 0x80131385
_ANSWER_LIMIT_BYTES = 0xFFFF
_DIRECTORY_ENTRIES_MAX = 20_000


class DiagnosticsError(RuntimeFailure):
    """The runtime does not answer. The message is a sentence for the user."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Provider(Struct, frozen=True):
    """The events of a session: `keywords` select groups, `level` 4 is informational, 5 verbose."""

    keywords: int
    level: int
    name: str = RUNTIME_PROVIDER

    def encoded(self) -> bytes:
        """In the format of commands, without arguments."""
        return struct.pack("<QI", self.keywords, self.level) + _text(self.name) + struct.pack("<I", 0)


class Session:
    """An open session: a stream in the nettrace format, which only a helper reads."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        connection.setblocking(False)
        self.number = number
        self._connection = connection

    def fileno(self) -> int:
        """The descriptor of the connection."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection; the session ends when nobody else has it open."""
        self._connection.close()


class Endpoint(Struct, frozen=True):
    """The diagnostics socket of the process of `root`, by its path there."""

    root: TargetRoot
    path: str

    def start(
        self, providers: Iterable[Provider], *, buffer_mib: int, rundown: bool, timeout_s: float = TIMEOUT_S
    ) -> Session:
        """Start a session.

        Without `rundown` it ends without the list of methods, if the runtime supports that. Raises
        DiagnosticsError.
        """
        encoded = [provider.encoded() for provider in providers]
        array = struct.pack("<I", len(encoded)) + b"".join(encoded)
        sizes = struct.pack("<II", buffer_mib, _NETTRACE_FORMAT)
        deadline_s = time.monotonic() + timeout_s
        if not rundown:
            try:
                return self._start(_COLLECT_TRACING_2, sizes + b"\0" + array, deadline_s)
            except DiagnosticsError as error:
                if error.code != _UNKNOWN_COMMAND:
                    raise
        return self._start(_COLLECT_TRACING, sizes + array, deadline_s)

    @contextlib.contextmanager
    def stopping(self, session: Session, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
        """Request the end of a session, and read its stream to the end within the context.

        Raises DiagnosticsError.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._connected(deadline_s) as connection:
            _send(connection, _STOP_TRACING, struct.pack("<Q", session.number), deadline_s)
            yield

    def _start(self, command: int, payload: bytes, deadline_s: float) -> Session:
        connection = self._connected(deadline_s)
        try:
            _send(connection, command, payload, deadline_s)
            answer = _answer(connection, deadline_s)
            if len(answer) < 8:
                raise DiagnosticsError("its answer is cut")
            return Session(connection, struct.unpack_from("<Q", answer)[0])
        except BaseException:
            connection.close()
            raise

    def _connected(self, deadline_s: float) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(max(0.001, deadline_s - time.monotonic()))
            # A path of the target may be longer than an address allows, and may change its meaning.
            held = self.root.open_handle(self.path, follow=False)
            try:
                if not stat.S_ISSOCK(os.fstat(held).st_mode):
                    raise DiagnosticsError("its diagnostics socket is not a socket")
                connection.connect(f"/proc/self/fd/{held}")
            finally:
                os.close(held)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("<iII", credentials)[0] != self.root.pid:
                raise DiagnosticsError("its diagnostics socket belongs to another process")
        except DiagnosticsError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise _refused(error) from error
        return connection


def find_endpoint(
    pid: int, namespace_pid: int, start_ticks: int, proc: Path = Path("/proc"), *, exactly: bool = False
) -> Endpoint:
    """Find the socket of a process: in its TMPDIR, in its mount and pid namespace.

    `exactly`: only the usual name, for a process that may not be a .NET process. Raises DiagnosticsError if
    there is none.
    """
    environment = read_environment(pid, proc)
    if environment.get(b"DOTNET_EnableDiagnostics", environment.get(b"COMPlus_EnableDiagnostics")) == b"0":
        raise DiagnosticsError("it was started with DOTNET_EnableDiagnostics=0, which disables the socket")
    root = root_of(pid, proc)
    for temporary in dict.fromkeys((environment.get(b"TMPDIR", b"/tmp") or b"/tmp", b"/tmp")):
        directory = os.path.join("/", os.fsdecode(temporary))
        exact = os.path.join(directory, f"dotnet-diagnostic-{namespace_pid}-{start_ticks}-socket")
        if _is_there(root, exact):
            return Endpoint(root, exact)
        # In a time namespace the start time of the process differs.
        for name in () if exactly else _sockets(root, directory, namespace_pid):
            return Endpoint(root, os.path.join(directory, name))
    raise DiagnosticsError("it has no diagnostics socket")


def _is_there(root: TargetRoot, path: str) -> bool:
    try:
        os.close(root.open_handle(path, follow=False))
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise DiagnosticsError(f"its diagnostics socket was not opened: {error.strerror}") from error
        return False
    return True


def _sockets(root: TargetRoot, directory: str, namespace_pid: int) -> Iterator[str]:
    pattern = re.compile(rf"dotnet-diagnostic-{namespace_pid}-\d{{1,20}}-socket")
    try:
        handle = root.open_handle(directory)
    except OSError:
        return
    try:
        with os.scandir(f"/proc/self/fd/{handle}/.") as entries:
            for _number, entry in zip(range(_DIRECTORY_ENTRIES_MAX), entries, strict=False):
                if pattern.fullmatch(entry.name):
                    yield entry.name
    except OSError:
        return
    finally:
        os.close(handle)


def _send(connection: socket.socket, command: int, payload: bytes, deadline_s: float) -> None:
    size = _HEADER.size + len(payload)
    try:
        connection.settimeout(max(0.001, deadline_s - time.monotonic()))
        connection.sendall(_HEADER.pack(_MAGIC, size, _EVENT_PIPE, command, 0) + payload)
    except OSError as error:
        raise _refused(error) from error


def _answer(connection: socket.socket, deadline_s: float) -> bytes:
    magic, size, command_set, command, _reserved = _HEADER.unpack(
        _receive_exactly(connection, _HEADER.size, deadline_s)
    )
    if magic != _MAGIC or not _HEADER.size <= size <= _ANSWER_LIMIT_BYTES:
        raise DiagnosticsError("it does not speak the diagnostics protocol")
    payload = _receive_exactly(connection, size - _HEADER.size, deadline_s)
    if command_set == _SERVER and command == _OK:
        return payload
    code = struct.unpack_from("<I", payload)[0] if len(payload) >= 4 else 0
    raise DiagnosticsError(f"it refuses the session (0x{code:08x})", code)


def _receive_exactly(connection: socket.socket, size_bytes: int, deadline_s: float) -> bytes:
    received = b""
    while len(received) < size_bytes:
        part = _receive(connection, size_bytes - len(received), deadline_s)
        if not part:
            raise DiagnosticsError("it closed the connection")
        received += part
    return received


def _receive(connection: socket.socket, limit_bytes: int, deadline_s: float) -> bytes:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise _late()
    connection.settimeout(left_s)
    try:
        return connection.recv(limit_bytes)
    except OSError as error:
        raise _refused(error) from error


def _late() -> DiagnosticsError:
    return DiagnosticsError(f"it does not answer within {TIMEOUT_S:.0f} s")


def _refused(error: OSError) -> DiagnosticsError:
    if isinstance(error, TimeoutError | BlockingIOError):
        return _late()
    if isinstance(error, PermissionError):
        return DiagnosticsError(
            "its diagnostics socket belongs to another user, and the daemon lacks CAP_DAC_OVERRIDE"
        )
    return DiagnosticsError(f"its diagnostics socket cannot be used: {error.strerror or error}")


def _text(text: str) -> bytes:
    encoded = (text + "\0").encode("utf-16-le")
    return struct.pack("<I", len(encoded) // 2) + encoded
