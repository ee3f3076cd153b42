"""The perf map that a JVM writes when it is asked to: `Compiler.perfmap` over its attach socket.

It has the names of all code that is compiled at that moment, and of stubs. The JVM writes it to the target's
/tmp as the target's user.

Rules:
- Nothing is asked for while something has the name of the map: the JVM would follow a link there, and write
  over a map of somebody else.
- What is removed afterwards is the file that came in the meantime: a regular one, of the target's user.

src/hotspot/share/code/codeCache.cpp (write_perf_map), from JDK 17 on
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bpfleakd.process.process import ProcessInfo
from bpfleakd.process.rooted_open import open_directory_below
from bpfleakd.runtimes.jvm.attach import AttachError, JavaAttach

__all__ = ["JavaPerfMap"]

_PROC = Path("/proc")
_COMMAND = "Compiler.perfmap"
_TIMEOUT_S = 30.0


class JavaPerfMap:
    """The perf map of one process, for as long as it takes to open it."""

    command = _COMMAND

    def __init__(self, process: ProcessInfo, attach: JavaAttach, proc: Path = _PROC) -> None:
        self._process = process
        self._attach = attach
        self._proc = proc
        self._name = f"perf-{process.namespace_pid}.map"

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Have it written; it is removed with the context. Raises AttachError. Waits for the process."""
        with self._directory() as directory:
            if _status(directory, self._name) is not None:
                raise AttachError(f"there is a file /tmp/{self._name} already")
            self._attach.run(_COMMAND, _TIMEOUT_S)
            made = _status(directory, self._name)
            if made is None or not stat.S_ISREG(made.st_mode) or made.st_uid != self._process.uid:
                raise AttachError(f"it has not written /tmp/{self._name}")
            try:
                yield
            finally:
                now = _status(directory, self._name)
                if now is not None and (now.st_dev, now.st_ino) == (made.st_dev, made.st_ino):
                    with contextlib.suppress(OSError):
                        os.unlink(self._name, dir_fd=directory)

    @contextlib.contextmanager
    def _directory(self) -> Iterator[int]:
        try:
            root = self._proc / str(self._process.id.pid) / "root"
            directory = open_directory_below(root, "tmp", self._process.uid)
        except OSError as error:
            raise AttachError(f"its /tmp cannot be opened: {error.strerror}") from error
        try:
            yield directory
        finally:
            os.close(directory)


def _status(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AttachError(f"its /tmp cannot be read: {error.strerror}") from error
