"""Compiled programs cached between runs, so the next start needs no compiler."""

from __future__ import annotations

from pathlib import Path

from bpfleakd.kernel.compilation.compiled import CompiledPrograms
from bpfleakd.kernel.file_cache import FileCache

# More than the number of attach methods times walkers, so switching between them needs no compiler.
_KEPT = 8
_BYTES_MAX = 16 << 20


class CompileCache:
    """Files in `directory`, created if missing; with None, nothing is cached."""

    def __init__(self, directory: Path | None) -> None:
        self._files: FileCache | None = None
        if directory is not None:
            self._files = FileCache(directory, "programs", files_max=_KEPT, file_bytes_max=_BYTES_MAX)

    def read(self, key: str) -> CompiledPrograms | None:
        """The programs stored as `key`; None if there are none, or none that can be trusted."""
        return None if self._files is None else self._files.read(key, CompiledPrograms.from_json)

    def write(self, key: str, programs: CompiledPrograms) -> None:
        """Store programs, completely or not at all; a failure is logged and otherwise ignored."""
        if self._files is not None:
            self._files.write(key, programs.to_json())
