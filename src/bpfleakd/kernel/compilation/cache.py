"""Compiled programs kept between runs, so that the next start needs no compiler."""

from __future__ import annotations

from pathlib import Path

from bpfleakd.kernel.compilation.compiled import CompiledPrograms
from bpfleakd.kernel.file_cache import FileCache

__all__ = ["CompileCache"]

# More than there are ways to attach times walkers, so that a change of them to and fro needs no compiler.
_KEPT = 8
_BYTES_MAX = 16 << 20


class CompileCache:
    """Files in `directory`, made if it is missing; None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._files: FileCache | None = None
        if directory is not None:
            self._files = FileCache(directory, "programs", files_max=_KEPT, file_bytes_max=_BYTES_MAX)

    def read(self, key: str) -> CompiledPrograms | None:
        """Return what was kept as `key`; None if there is nothing, or nothing that can be trusted."""
        return None if self._files is None else self._files.read(key, CompiledPrograms.from_json)

    def write(self, key: str, programs: CompiledPrograms) -> None:
        """Store programs, completely or not at all; a failure is logged, and does no harm."""
        if self._files is not None:
            self._files.write(key, programs.to_json())
