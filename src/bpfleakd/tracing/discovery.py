"""Which functions of a process to probe: all its files are asked what they define, once for each file.

A file is known by its inode, size and time, so that the second process with the same libraries costs a
few stats. Reading what a new one defines is quick (elf/definitions.py); only those that hold an allocator
are gone through in a child, all of a process' files in one, and what was found is kept for the next start
(probe_point_cache.py).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import structlog

from bpfleakd import errors
from bpfleakd.elf.debug_files import find_debug_file, minidebug_image
from bpfleakd.elf.definitions import defines_any
from bpfleakd.elf.image import ElfImage
from bpfleakd.kernel.abi import role_arguments
from bpfleakd.kernel.probes.links import ProbePoint
from bpfleakd.kernel.probes.point_cache import ProbePointCache
from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, WantedFunction
from bpfleakd.model.mapping import Mapping
from bpfleakd.model.probe import FunctionRole, ProbedFunction
from bpfleakd.process.allocators import FUNCTIONS, SIGNS, TELLING_NAMES, identify
from bpfleakd.process.mappings import mapped_file
from bpfleakd.symbols.bounded_cache import BoundedCache

__all__ = ["Discovery", "FileId", "ProbedFile"]

log = structlog.get_logger()

FileId: TypeAlias = tuple[int, int, int, int]

_FILES_MAX = 4096

_WANTED = (
    *(
        WantedFunction(
            function.name,
            role_arguments(function.role, function.leading),
            "size"
            if function.role is FunctionRole.SIZE_SECOND
            else function.role.value.removesuffix("-first"),
            release=function.role is FunctionRole.RELEASE,
        )
        for function in FUNCTIONS
    ),
    *(WantedFunction(name, (), "sign", release=False) for name in sorted(SIGNS)),
)


@dataclass(frozen=True, slots=True)
class ProbedFile:
    """A file with functions to probe: `path` opens it, `functions` is what is shown of them."""

    id: FileId
    path: str
    points: tuple[ProbePoint, ...]
    functions: tuple[ProbedFunction, ...]

    @property
    def has_allocator(self) -> bool:
        """Whether more than the dynamic loader's news is to be had here."""
        return any(function.role is not FunctionRole.LIBRARIES_CHANGED for function in self.functions)


@dataclass(frozen=True, slots=True)
class _Candidate:
    id: FileId
    path: str
    mapping: Mapping
    debug_path: str | None


class Discovery:
    """Finds what to probe; remembers files."""

    def __init__(self, cache_directory: Path | None = None) -> None:
        """What was found is kept in `cache_directory`, unless it is None."""
        self._cache = ProbePointCache(cache_directory)
        self._known: BoundedCache[FileId, tuple[FunctionProbe, ...]] = BoundedCache(_FILES_MAX)

    def files(
        self, pid: int, mappings: Iterable[Mapping], passed_over: Collection[FileId] = ()
    ) -> list[ProbedFile]:
        """The files of a process that have functions to probe, but for those `passed_over`.

        Those that cannot be understood are left out. Raises NoSuchProcess or KernelError.
        """
        mapped = _mapped_files(pid, mappings, passed_over)
        self._search(pid, mapped)
        found = (_probed_file(file, path, m, self._known.get(file) or ()) for file, path, m in mapped)
        return [file for file in found if file.points]

    def _search(self, pid: int, mapped: Sequence[tuple[FileId, str, Mapping]]) -> None:
        program = _file_id(f"/proc/{pid}/exe")
        candidates: list[_Candidate] = []
        for file, path, mapping in mapped:
            if self._known.get(file) is None:
                candidate = _candidate(pid, file, path, mapping, is_program=file == program)
                if candidate:
                    candidates.append(candidate)
                else:
                    self._known.put(file, ())
        searched = [SearchedFile(candidate.path, candidate.debug_path) for candidate in candidates]
        for candidate, reply in zip(candidates, self._cache.search(searched, _WANTED), strict=True):
            if isinstance(reply, errors.BpfleakdError):
                log.warning("allocator.left-out", pid=pid, path=candidate.mapping.path, reason=reply.message)
                reply = []
            self._known.put(candidate.id, tuple(reply))


def _mapped_files(
    pid: int, mappings: Iterable[Mapping], passed_over: Collection[FileId]
) -> list[tuple[FileId, str, Mapping]]:
    """The files that a process executes code of, each with a path that opens it and a mapping."""
    by_inode: dict[tuple[str, int], Mapping] = {}
    for mapping in mappings:
        if mapping.executable and mapping.inode:
            by_inode.setdefault((mapping.device, mapping.inode), mapping)
    files: dict[FileId, tuple[str, Mapping]] = {}
    for mapping in by_inode.values():
        path = mapped_file(pid, mapping)
        file = _file_id(path)
        if file is not None and file not in passed_over:
            files.setdefault(file, (path, mapping))
    return [(file, path, mapping) for file, (path, mapping) in files.items()]


def _file_id(path: str) -> FileId | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _candidate(pid: int, file: FileId, path: str, mapping: Mapping, *, is_program: bool) -> _Candidate | None:
    """The file if it defines any of the functions, by its own symbols or by those of its debug file."""
    try:
        with ElfImage.open(path) as image:
            if defines_any(image, TELLING_NAMES):
                return _Candidate(file, path, mapping, None)
            # A library has to export an allocator for others to use it; a program may hide its own.
            if not is_program or image.section(".symtab") is not None:
                return None
            debug_path = find_debug_file(image, mapping.path, Path(f"/proc/{pid}/root"))
            with ElfImage.open(debug_path) if debug_path else minidebug_image(image) or image as symbols:
                if not defines_any(symbols, TELLING_NAMES):
                    return None
            return _Candidate(file, path, mapping, str(debug_path) if debug_path else None)
    except (errors.BadElf, OSError):
        return None


def _probed_file(file: FileId, path: str, mapping: Mapping, probes: Sequence[FunctionProbe]) -> ProbedFile:
    found = {probe.function: probe for probe in probes}
    identified = identify({probe.function: probe.entry for probe in probes})
    names = {function.name for _allocator, function in identified}
    points: list[ProbePoint] = []
    functions: list[ProbedFunction] = []
    for allocator, function in identified:
        probe = found[function.name]
        # What it jumps to is probed, and another breakpoint on the way there costs as much again.
        if probe.jumps_to in names:
            continue
        frees = function.role is FunctionRole.RELEASE
        points.append(
            ProbePoint(
                probe.offset,
                function.role,
                probe.registers,
                calls_release=frees and probe.calls_alike,
                calls_allocator=not frees and (probe.calls_alike or function.name not in allocator.leaves),
            )
        )
        functions.append(
            ProbedFunction(
                allocator.name, function.name, function.role, mapping.path, probe.offset, probe.emulated
            )
        )
    return ProbedFile(file, path, tuple(points), tuple(functions))
