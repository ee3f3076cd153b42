"""Holds back a command's terminal output while something else is on the screen, and copies it later."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import IO

_CHUNK_BYTES = 1 << 16


class HeldOutput:
    """Replaces standard output and standard error where they are terminals.

    It is a file without a name, because a child of the command may outlive bpfleakctl and still write to it.
    """

    def __init__(self) -> None:
        # Open for as long as the command may write to it.
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._copied_bytes = 0

    def of(self, stream: IO[str]) -> IO[bytes] | None:
        """The replacement of a stream; None: the stream itself."""
        return self._file if stream.isatty() else None

    def copy(self) -> None:
        """Write the output since the last call to the terminal."""
        while data := os.pread(self._file.fileno(), _CHUNK_BYTES, self._copied_bytes):
            self._copied_bytes += len(data)
            sys.stdout.buffer.write(data)
        sys.stdout.flush()

    @property
    def stdin(self) -> int | None:
        """The standard input of the command: empty while `top` reads the keys; None: bpfleakctl's own."""
        return subprocess.DEVNULL if sys.stdin.isatty() else None
