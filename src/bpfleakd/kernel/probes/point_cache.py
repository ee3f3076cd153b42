"""Probe points on disk, so that nothing is disassembled twice.

    cache = ProbePointCache(Path("/var/cache/bpfleakd"))
    cache.search([(file, digest)], functions)  # as points.search_files

An entry is named after all that it follows from: a digest of the bytes of the file and of the one with its
symbols, and the functions that were looked for. A breakpoint in the middle of an instruction ends the
process that runs into it, so nothing less will do: a build-id can be forged, and inode numbers are used
again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bpfleakd import errors
from bpfleakd.kernel.file_cache import FileCache
from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, WantedFunction, search_files

__all__ = ["ProbePointCache"]

# To be raised whenever the same file gives other points.
_FORMAT_VERSION = 4

_KEPT = 64
_ENTRY_BYTES_MAX = 1 << 20


class ProbePointCache:
    """Files in `directory`, made if it is missing; None keeps nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._files: FileCache | None = None
        if directory is not None:
            self._files = FileCache(directory, "points", files_max=_KEPT, file_bytes_max=_ENTRY_BYTES_MAX)

    def search(
        self, digested: Sequence[tuple[SearchedFile, bytes | None]], functions: Sequence[WantedFunction]
    ) -> list[list[FunctionProbe] | errors.BpfleakdError]:
        """The probe points of the functions that each file defines, or why it cannot be understood.

        Each file comes with the digest of its bytes and those of its debug file; None: nothing is kept of it.
        """
        files = [file for file, _digest in digested]
        if self._files is None or not files:
            return search_files(files, functions)
        wanted = json.dumps([_FORMAT_VERSION, [asdict(function) for function in functions]]).encode()
        names = [
            None if digest is None else hashlib.blake2b(wanted + digest, digest_size=32).hexdigest()
            for _file, digest in digested
        ]
        kept = [None if name is None else self._files.read(name, _decoded) for name in names]
        missing = [number for number, probes in enumerate(kept) if probes is None]
        answers: list[list[FunctionProbe] | errors.BpfleakdError] = [probes or [] for probes in kept]
        searched = search_files([files[number] for number in missing], functions)
        for number, answer in zip(missing, searched, strict=True):
            answers[number] = answer
            name = names[number]
            if name is not None and not isinstance(answer, errors.BpfleakdError):
                self._files.write(name, json.dumps([asdict(probe) for probe in answer]).encode())
        return answers


def _decoded(entry: bytes) -> list[FunctionProbe]:
    return [FunctionProbe.from_json(row) for row in json.loads(entry)]
