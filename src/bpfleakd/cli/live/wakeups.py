"""A descriptor that becomes readable to wake up the screen: for signals, and for results of threads.

Python writes a byte to it for each signal (signal.set_wakeup_fd). So a handler does no work, and a signal
cannot interrupt the restoring of the terminal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGWINCH,
)
_READ_BYTES = 4096


class Wakeups:
    """Holds back the signals of a terminal and of its user until the context ends. Main thread only."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._read = self._write = -1
        self._closing = threading.Lock()

    def __enter__(self) -> Wakeups:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _recorded) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        with self._closing:  # Another thread that writes must not meet a reused descriptor.
            os.close(self._read)
            os.close(self._write)
            self._write = -1

    def fileno(self) -> int:
        """What to wait for."""
        return self._read

    def wake(self) -> None:
        """Wake the waiting thread, from any thread."""
        # Full: the reader will wake up anyway. Closed: there is no reader.
        with self._closing, contextlib.suppress(OSError):
            os.write(self._write, b"\0")

    def signals(self) -> frozenset[int]:
        """Return the signals that came since the last call."""
        try:
            return frozenset(os.read(self._read, _READ_BYTES)) - {0}
        except BlockingIOError:
            return frozenset()

    @staticmethod
    def stop() -> None:
        """Stop this process like Ctrl-Z, and return when it continues."""
        before = {
            number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTSTP, signal.SIGCONT)
        }
        os.kill(os.getpid(), signal.SIGTSTP)
        for number, handler in before.items():
            signal.signal(number, handler)


def _recorded(number: int, frame: object) -> None:
    """Do nothing: the byte in the pipe is the record."""
