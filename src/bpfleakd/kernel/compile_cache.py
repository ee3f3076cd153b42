"""Compiled programs kept between runs, so that the next start needs no compiler.

What is in a file is loaded into the kernel: only what nobody but us could have written is read.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import structlog

from bpfleakd.kernel.compiled import CompiledPrograms
from bpfleakd.private_directory import PrivateDirectory

__all__ = ["CompileCache"]

log = structlog.get_logger()

_KEPT = 4
_BYTES_MAX = 16 << 20
_PREFIX, _SUFFIX = "programs-", ".json"


class CompileCache:
    """Files in `directory`, made if it is missing; None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory and PrivateDirectory(directory, [os.geteuid()])

    def read(self, key: str) -> CompiledPrograms | None:
        """Return what was kept as `key`; None if there is nothing, or nothing that can be trusted."""
        if self._directory is None:
            return None
        try:
            return CompiledPrograms.from_json(self._directory.read(_name_of(key), _BYTES_MAX))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("programs.cache-ignored", directory=str(self._directory.path), reason=str(error))
            return None

    def write(self, key: str, programs: CompiledPrograms) -> None:
        """Keep programs, whole or not at all; that it fails is no reason to stop."""
        if self._directory is None:
            return
        try:
            self._directory.write(_name_of(key), programs.to_json())
            files = self._directory.longest_unused_first(_SUFFIX)
            for name in [name for name, _size_bytes in files if name.startswith(_PREFIX)][:-_KEPT]:
                with contextlib.suppress(FileNotFoundError):
                    self._directory.remove(name)
        except (OSError, ValueError) as error:
            log.warning("programs.not-cached", directory=str(self._directory.path), reason=str(error))


def _name_of(key: str) -> str:
    return f"{_PREFIX}{key}{_SUFFIX}"
