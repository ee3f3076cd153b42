"""Probe points on disk, so nothing is disassembled twice.

    cache = ProbePointCache(helpers, Path("/var/cache/bpfleakd"))
    cache.search(file, digest, functions)  # as points.search_file

An entry is named after all its inputs: a digest of the bytes of the file and of the one with its symbols, and
the wanted functions. A breakpoint in the middle of an instruction ends the process that reaches it, so
nothing less is safe: a build-id can be forged, and inode numbers are reused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import asdict

from bpfleakd.kernel.file_cache import FileCache
from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, WantedFunction, search_file
from bpfleakd.sandbox.helpers import Helpers

# Increment this whenever the same file gives other points.
_FORMAT_VERSION = 7

_KEPT = 64
_ENTRY_BYTES_MAX = 1 << 20


class ProbePointCache:
    """Files in `directory`, created if missing; with None, nothing is cached. Used by several threads."""

    def __init__(self, helpers: Helpers, directory: Path | None) -> None:
        self._helpers = helpers
        self._files: FileCache | None = None
        if directory is not None:
            self._files = FileCache(directory, "points", files_max=_KEPT, file_bytes_max=_ENTRY_BYTES_MAX)

    def search(
        self, file: SearchedFile, digest: bytes | None, functions: Sequence[WantedFunction]
    ) -> list[FunctionProbe]:
        """The probe points of the wanted functions that a file defines. Raises the errors of `search_file`.

        `digest` is that of its bytes and of those of its debug file; with None, the result is not cached.
        """
        if self._files is None or digest is None:
            return search_file(self._helpers, file, functions)
        wanted = json.dumps([_FORMAT_VERSION, [asdict(function) for function in functions]]).encode()
        name = hashlib.blake2b(wanted + digest, digest_size=32).hexdigest()
        found = self._files.read(name, _decoded)
        if found is None:
            found = search_file(self._helpers, file, functions)
            self._files.write(name, json.dumps([asdict(probe) for probe in found]).encode())
        return found


def _decoded(entry: bytes) -> list[FunctionProbe]:
    return [FunctionProbe.from_json(row) for row in json.loads(entry)]
