"""A file that a JVM writes to its /tmp on request, as the target's user: there for a moment, then removed.

Rules:
- Nothing is asked for while something has that name: the JVM would follow a link there, and write over a file
  of somebody else.
- What is opened and removed afterwards is the file that came in the meantime: a regular one, of the target's
  user.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from bpfleakd.process.files.rooted_open import reopen_regular
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.jvm.attach import AttachError, temporary_directory

_PROC = Path("/proc")


@contextlib.contextmanager
def file_written(
    process: ProcessInfo, name: str, write: Callable[[], object], proc: Path = _PROC
) -> Iterator[Callable[[], int]]:
    """Have `write` write /tmp/NAME, and remove it with the context. Raises AttachError.

    The context is what opens it for reading; that raises AttachError, too.
    """
    with contextlib.ExitStack() as stack:
        try:
            directory = stack.enter_context(temporary_directory(process, proc))
        except OSError as error:
            raise AttachError(f"its /tmp cannot be opened: {error.strerror}") from error
        if _status(directory, name) is not None:
            raise AttachError(f"there is a file /tmp/{name} already")
        write()
        made = _status(directory, name)
        if made is None or not stat.S_ISREG(made.st_mode) or made.st_uid != process.uid:
            raise AttachError(f"it has not written /tmp/{name}")
        try:
            yield lambda: _open_same(directory, name, made)
        finally:
            now = _status(directory, name)
            if now is not None and _is_same(now, made):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=directory)


def _open_same(directory: int, name: str, made: os.stat_result) -> int:
    try:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if not _is_same(os.fstat(handle), made):
                raise AttachError(f"/tmp/{name} is another file now")
            return reopen_regular(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise AttachError(f"/tmp/{name} cannot be opened: {error.strerror}") from error


def _is_same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _status(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AttachError(f"its /tmp cannot be read: {error.strerror}") from error
