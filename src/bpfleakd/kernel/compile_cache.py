"""Compiled programs kept between runs, so that the next start needs no compiler.

What is in a file is loaded into the kernel: only what nobody but us could have written is read.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

import structlog

from bpfleakd.kernel.compiled import CompiledPrograms

__all__ = ["CompileCache"]

log = structlog.get_logger()

_KEPT = 4
_BYTES_MAX = 16 << 20


class CompileCache:
    """Files in `directory`, made if it is missing; None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def read(self, key: str) -> CompiledPrograms | None:
        """Return what was kept as `key`; None if there is nothing, or nothing that can be trusted."""
        if self._directory is None:
            return None
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        with open(descriptor, encoding="ascii") as file:
            try:
                _check_ours(os.fstat(file.fileno()), stat.S_ISREG)
                _check_ours(os.stat(self._directory), stat.S_ISDIR)
                return CompiledPrograms.from_json(file.read(_BYTES_MAX))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("programs.cache-ignored", path=str(self._path(key)), reason=str(error))
                return None

    def write(self, key: str, programs: CompiledPrograms) -> None:
        """Keep programs, whole or not at all; that it fails is no reason to stop."""
        if self._directory is None:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._directory, prefix=".programs-")
            try:
                with open(descriptor, "w", encoding="ascii") as file:
                    file.write(programs.to_json())
                os.replace(temporary, self._path(key))
            except BaseException:
                os.unlink(temporary)
                raise
            self._drop_oldest()
        except OSError as error:
            log.warning("programs.not-cached", directory=str(self._directory), reason=str(error))

    def _path(self, key: str) -> Path:
        assert self._directory is not None
        return self._directory / f"programs-{key}.json"

    def _drop_oldest(self) -> None:
        assert self._directory is not None
        files = sorted(self._directory.glob("programs-*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-_KEPT]:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def _check_ours(status: os.stat_result, is_right_kind: object) -> None:
    assert callable(is_right_kind)
    if not is_right_kind(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError("it is not ours")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError("others may write it")
