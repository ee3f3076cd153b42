"""The attach socket of a JVM, for commands of jcmd.

Commands disturb the process, so bpfleakd only sends them on request.

Rules:
- The socket is in the target's /tmp, and the target controls all that is there. No link out of its root is
  followed. Nothing is sent before the kernel has confirmed that the target is behind the socket
  (SO_PEERCRED).
- The JVM opens the socket when it receives SIGQUIT and finds our file. SIGQUIT ends a process that does not
  catch it. A JVM that was told not to listen (-XX:+DisableAttachMechanism, -Xrs) prints its threads. So both
  are checked before: the signals it catches, and the flags in its memory.
- Our file is removed in any case. Every wait has a deadline, because a stopped target never answers.

src/hotspot/os/linux/attachListener_linux.cpp,
src/jdk.attach/linux/classes/sun/tools/attach/VirtualMachineImpl.java
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bpfleakd import errors
from bpfleakd.process.files.rooted_open import root_of
from bpfleakd.process.proc_text import catches_signal
from bpfleakd.process.process import ProcessInfo, read_process
from bpfleakd.runtimes.runtime import RuntimeFailure

_PROC = Path("/proc")
_TEMPORARY = "tmp"
# The JVM looks for the file when it receives the signal; the JDK's own tools wait as long.
_OPENING_TIMEOUT_S = 6.0
_POLL_S = 0.02
_ANSWER_LIMIT_BYTES = 64 << 20
_VERSION = b"1"
_ARGUMENTS = 3
_CREDENTIALS = struct.Struct("iII")


class AttachError(RuntimeFailure):
    """The JVM does not answer. The message is the end of a sentence about the process."""


class JavaAttach:
    """Commands for one process. `flag` reads an option of the JVM; None if it does not exist."""

    def __init__(self, process: ProcessInfo, flag: Callable[[str], bool | None], proc: Path = _PROC) -> None:
        self._process = process
        self._flag = flag
        self._proc = proc

    def run(self, command: str, timeout_s: float) -> str:
        """Run a command of jcmd, wait for it and return its answer. Raises AttachError."""
        deadline_s = time.monotonic() + timeout_s
        try:
            with (
                temporary_directory(self._process, self._proc) as directory,
                self._connected(directory) as connection,
            ):
                request = b"".join(
                    part + b"\0" for part in (_VERSION, b"jcmd", command.encode(), *[b""] * (_ARGUMENTS - 1))
                )
                connection.settimeout(max(0.1, deadline_s - time.monotonic()))
                connection.sendall(request)
                answer = _received(connection, deadline_s)
        except OSError as error:
            raise AttachError(f"its attach socket does not answer: {error.strerror or error}") from error
        code, _newline, text = answer.partition(b"\n")
        if code != b"0":
            raise AttachError(f"it refuses {command}: {text[:200].decode(errors='replace').strip()}")
        return text.decode("utf-8", "replace")

    @contextlib.contextmanager
    def _connected(self, directory: int) -> Iterator[socket.socket]:
        name = f".java_pid{self._process.namespace_pid}"
        if not _is_socket(directory, name):
            self._have_opened(directory, name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(_OPENING_TIMEOUT_S)
            connection.connect(f"/proc/self/fd/{directory}/{name}")
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[0] != self._process.id.pid:
                raise AttachError("another process is behind its attach socket")
            yield connection

    def _have_opened(self, directory: int, name: str) -> None:
        """Make the JVM open its socket. Raises AttachError or OSError."""
        pidfd = os.pidfd_open(self._process.id.pid)
        try:
            self._check_may_be_asked()
            asked = f".attach_pid{self._process.namespace_pid}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(asked, flags, 0o660, dir_fd=directory)
            try:
                # The JVM accepts root's file too, if we may not change its owner (CAP_CHOWN).
                with contextlib.suppress(PermissionError):
                    os.fchown(file, self._process.uid, -1)
                signal.pidfd_send_signal(pidfd, signal.SIGQUIT)
                self._wait_for(directory, name, pidfd)
            finally:
                os.close(file)
                with contextlib.suppress(OSError):
                    os.unlink(asked, dir_fd=directory)
        finally:
            os.close(pidfd)

    def _check_may_be_asked(self) -> None:
        """Raise AttachError if SIGQUIT would do harm or no good."""
        try:
            now = read_process(self._process.id.pid, self._proc)
        except errors.BpfleakdError as error:
            raise AttachError("it has ended") from error
        if now.id != self._process.id:
            raise AttachError("it has ended")
        if now.state in "TtZX":
            raise AttachError("it is stopped")
        if not catches_signal(self._proc / str(now.id.pid), signal.SIGQUIT):
            raise AttachError("it does not catch SIGQUIT, which requests its attach socket")
        for name in ("DisableAttachMechanism", "ReduceSignalUsage"):
            # An unreadable flag might be on.
            if self._flag(name) is not False:
                raise AttachError(f"it was started with {name}, which forbids opening its attach socket")

    def _wait_for(self, directory: int, name: str, pidfd: int) -> None:
        deadline_s = time.monotonic() + _OPENING_TIMEOUT_S
        end = select.poll()
        end.register(pidfd, select.POLLIN)
        while not _is_socket(directory, name):
            if end.poll(_POLL_S * 1000) or time.monotonic() > deadline_s:
                raise AttachError("it does not open its attach socket")


@contextlib.contextmanager
def temporary_directory(process: ProcessInfo, proc: Path = _PROC) -> Iterator[int]:
    """A handle of the /tmp of a process, in which its user may create files. Raises OSError."""
    root = root_of(process.id.pid, proc)
    directory = root.open_writable_directory(_TEMPORARY, process.uid)
    try:
        yield directory
    finally:
        os.close(directory)


def _is_socket(directory: int, name: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _received(connection: socket.socket, deadline_s: float) -> bytes:
    parts: list[bytes] = []
    taken = 0
    while True:
        connection.settimeout(max(0.01, deadline_s - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
        taken += len(part)
        if taken > _ANSWER_LIMIT_BYTES:
            raise AttachError(f"its answer is longer than {_ANSWER_LIMIT_BYTES >> 20} MiB")
