"""Values stored in files between runs; those unused for longest are removed first.

Rules:
  - The cache only saves time. A file or disk error is logged, and has the same effect as an empty cache.
  - Files that another user could have written are not read (private_directory.py): their content goes into
    the kernel, or into the code of other processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from bpfleakd.private_directory import PrivateDirectory

log = structlog.get_logger()

_SUFFIX = ".json"

_Value = TypeVar("_Value")


class FileCache:
    """At most `files_max` files of `file_bytes_max` in `directory`, which is created if missing.

    They contain JSON, and are named after their content, `what`.
    """

    def __init__(self, directory: Path, what: str, *, files_max: int, file_bytes_max: int) -> None:
        self._directory = PrivateDirectory(directory, [os.geteuid()])
        self._what = what
        self._files_max = files_max
        self._file_bytes_max = file_bytes_max

    def read(self, name: str, decode: Callable[[bytes], _Value]) -> _Value | None:
        """The value stored as `name`; None if there is none, or none that can be trusted.

        `decode` creates it from the file, and raises ValueError, KeyError, TypeError or AttributeError.
        """
        try:
            return decode(self._directory.read(self._file_of(name), self._file_bytes_max))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(f"{self._what}.cache-ignored", directory=str(self._directory.path), reason=str(error))
            return None

    def write(self, name: str, content: bytes) -> None:
        """Store a file, completely or not at all; a failure is logged and otherwise ignored."""
        try:
            self._directory.write(self._file_of(name), content)
            files = self._directory.longest_unused_first(_SUFFIX)
            ours = [file for file, _size_bytes in files if file.startswith(f"{self._what}-")]
            for old in ours[: -self._files_max]:
                with contextlib.suppress(FileNotFoundError):
                    self._directory.remove(old)
        except (OSError, ValueError) as error:
            log.warning(f"{self._what}.not-cached", directory=str(self._directory.path), reason=str(error))

    def _file_of(self, name: str) -> str:
        return f"{self._what}-{name}{_SUFFIX}"
