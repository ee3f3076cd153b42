"""A command on its own terminal, for typing and reading."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


def read_until(terminal: int, words: bytes | None, read: bytes = b"", timeout_s: float = 60.0) -> bytes:
    """Read on after `read` until `words`, or until the other end is closed; return it all."""
    deadline = time.monotonic() + timeout_s
    while words is None or words not in read:
        assert time.monotonic() < deadline, read[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                read += os.read(terminal, 65_536)
            except OSError:  # EIO: the other end is closed
                break
    return read


@dataclass
class Terminal:
    """The other end of the command's terminal."""

    descriptor: int
    pid: int
    is_reaped: bool = False
    unread: bytes = b""

    def until(self, words: str) -> str:
        """Return what comes up to these words, and read no further. Fails if they do not come."""
        wanted = words.encode()
        self.unread = read_until(self.descriptor, wanted, self.unread)
        assert wanted in self.unread, self.unread[-2000:]
        read, _, self.unread = self.unread.partition(wanted)
        return (read + wanted).decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def end(self) -> tuple[str, int]:
        """Return the rest of its output, and the exit code."""
        rest = read_until(self.descriptor, None, self.unread)
        self.is_reaped = True
        return rest.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextlib.contextmanager
def on_a_terminal(
    command: Sequence[str], *, rows: int = 24, columns: int = 80, **environment: str
) -> Iterator[Terminal]:
    """Run a command on a terminal; it is ended with the context."""
    ready, go = os.pipe()
    pid, descriptor = pty.fork()
    if pid == 0:
        os.close(go)
        os.read(ready, 1)  # the terminal has its size
        # Not C's environment: where Python has loaded readline, as in pytest, that puts COLUMNS and LINES
        # there at SIGWINCH, and the command would hold on to them whatever the terminal's size is.
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        os.execve(command[0], list(command), kept | {"TERM": "xterm"} | environment)
    terminal = Terminal(descriptor, pid)
    terminal.resize(rows, columns)
    os.close(ready)
    os.close(go)
    try:
        yield terminal
    finally:
        if not terminal.is_reaped:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(descriptor)
