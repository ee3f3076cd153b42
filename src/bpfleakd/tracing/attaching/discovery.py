"""Finds the functions of a process to probe, from the definitions in its files, once per file.

A file is identified by its `FileKey`: files that only root could have written are read once for all
processes, any other for each process. So a second process with the same libraries costs a few stats. Reading
what a new file defines is quick (elf/definitions.py). Only files with an allocator are disassembled, by a
helper (sandbox/), each by itself, and the result is stored for the next start by the content from which it
follows from (kernel/probes/point_cache.py).

The tracing loop waits for none of it: files are read and searched by threads beside it, with so much time for
each process. What is left out because of that, or because a helper failed, is so for that process alone.

A debug file below a process' own root directory serves that process alone (process/files/debug_search.py),
and what any debug file says is verified in the program itself (kernel/probes/points.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from bpfleakd import errors
from bpfleakd.elf.byte_source import FileBytes
from bpfleakd.elf.definitions import defines_any, imports_any
from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.static_probes import has_static_probes
from bpfleakd.kernel.abi import role_arguments
from bpfleakd.kernel.probes.announced import PROVIDER
from bpfleakd.kernel.probes.point_cache import ProbePointCache
from bpfleakd.kernel.probes.points import FunctionProbe, SearchedFile, WantedFunction
from bpfleakd.kernel.probes.shared import InodeKey
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.process.allocators import FUNCTIONS, OPERATORS_NEW, SIGNS, TELLING_NAMES
from bpfleakd.process.files.debug_search import debug_file_for_all, debug_file_in_root, has_our_root
from bpfleakd.process.files.mapped_files import FileContent, FileKey, OpenedFile
from bpfleakd.process.files.process_code import CodeFile, ProcessCode
from bpfleakd.process.files.rooted_open import root_of
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.tracing.attaching.probed_file import ProbedFile, probed_file
from bpfleakd.tracing.background import Background

log = structlog.get_logger()

_FILES_MAX = 4096
_THREADS_MAX = 4
# Time limit for reading and searching all new files of a process.
_SEARCH_LIMIT_S = 20.0
# The time that callers outside of the loop can wait.
SEARCH_WAIT_S = 40.0

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


class _Candidate(Struct, frozen=True):
    """A file that defines one of the functions; results are stored under `key`."""

    key: FileKey
    mapping: Mapping
    content: FileContent
    debug: FileContent | None = None

    @property
    def searched(self) -> tuple[SearchedFile, bytes | None]:
        """The file to search, and the digest of all inputs."""
        debug, digest = self.debug, self.content.digest
        if debug is not None:
            digest = digest + debug.digest if digest and debug.digest else None
        return SearchedFile(
            self.mapping.path, self.content.descriptor, debug.descriptor if debug else None
        ), digest

    def close(self) -> None:
        """Close the files."""
        self.content.close()
        if self.debug is not None:
            self.debug.close()


class _Found(Struct, frozen=True):
    """The result for a file; `imports_new`: it imports a C++ operator new."""

    probes: tuple[FunctionProbe, ...] = ()
    imports_new: bool = False


class _Known(Struct):
    """Files that were read, by their identity and whether they were the process' executable.

    Used by several threads.
    """

    found: BoundedCache[tuple[FileKey, bool], _Found] = msgspec.field(
        default_factory=lambda: BoundedCache(_FILES_MAX)
    )
    lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def of(self, mapped: CodeFile, owner: str) -> _Found | None:
        """The result for a file and a process: a result for that process alone takes precedence."""
        key = mapped.file.key
        with self.lock:
            of_process = self.found.get((key.of_process(owner), mapped.is_program))
            return of_process if of_process is not None else self.found.get((key, mapped.is_program))

    def put(self, key: FileKey, mapped: CodeFile, found: _Found) -> None:
        """Store a result."""
        with self.lock:
            self.found.put((key, mapped.is_program), found)


class Discovery:
    """Finds the functions to probe; remembers files. Used from the tracing thread."""

    def __init__(self, helpers: Helpers, cache_directory: Path | None = None) -> None:
        """Results are stored in `cache_directory`, unless it is None."""
        self._cache = ProbePointCache(helpers, cache_directory)
        self._known = _Known()
        self._searches = Background("file-search", _THREADS_MAX)

    def files(
        self, code: ProcessCode, passed_over: Collection[InodeKey] = (), wait_s: float = SEARCH_WAIT_S
    ) -> list[ProbedFile]:
        """The files of a process with functions to probe, without those `passed_over` (device, inode).

        Files that cannot be parsed are left out. Raises NotYet if it takes longer than `wait_s`; then the
        work continues, and the caller should call again.
        """
        owner = code.owner
        # The same file may be mapped under several names.
        wanted: dict[FileKey, CodeFile] = {}
        for file in code.files.values():
            if file.file.key.inode_key not in passed_over:
                wanted.setdefault(file.file.key, file)
        mapped = list(wanted.values())
        unknown = [one for one in mapped if self._known.of(one, owner) is None]
        if unknown and not (
            self._searches.do(owner, lambda: self._search(code, unknown), wait_s)
            and all(self._known.of(one, owner) is not None for one in unknown)
        ):
            raise errors.NotYet(
                f"the files of process {code.pid} are still being read", "try again in a moment"
            )
        found = [self._known.of(one, owner) or _Found() for one in mapped]
        beside_cxx = any(one.imports_new for one in found)
        probed = (
            probed_file(one, looked_up.probes, beside_cxx=beside_cxx)
            for one, looked_up in zip(mapped, found, strict=True)
        )
        return [file for file in probed if file.points or file.sampled or file.refused]

    def _search(self, code: ProcessCode, unknown: Sequence[CodeFile]) -> None:
        until_s = time.monotonic() + _SEARCH_LIMIT_S
        for one in unknown:
            found = _Found()
            key, reason = one.file.key.of_process(code.owner), "reading its files has taken too long"
            try:
                if time.monotonic() < until_s:
                    key, found, reason = self._probes_of(code, one)
            except (HelperFailed, errors.BadElf, OSError) as error:
                # This failure does not concern other processes with the file.
                reason = str(error)
            finally:
                # Also after a bug, so the file is not read again and again.
                self._known.put(key, one, found)
            if reason:
                log.warning("allocator.left-out", pid=code.pid, path=one.mapping.path, reason=reason)

    def _probes_of(self, code: ProcessCode, one: CodeFile) -> tuple[FileKey, _Found, str]:
        """The functions of a file to probe, its identity, and why it cannot be parsed ("")."""
        candidate, imports_new = _candidate(code, one)
        if candidate is None:
            # For a program without symbols, another process may have its own debug file.
            is_all = not one.is_program or has_our_root(code.pid)
            key = one.file.key if is_all else one.file.key.of_process(code.owner)
            return key, _Found(imports_new=imports_new), ""
        try:
            probes = tuple(self._cache.search(*candidate.searched, _WANTED))
            return candidate.key, _Found(probes, imports_new), ""
        except errors.BadElf as error:
            return candidate.key, _Found(), error.message
        finally:
            candidate.close()


def _candidate(code: ProcessCode, mapped: CodeFile) -> tuple[_Candidate | None, bool]:
    """The file if it defines any of the functions, in its own symbols or in those of its debug file.

    Also returns whether it imports a C++ operator new. Raises OSError, or BadElf if it is written meanwhile.
    """
    file = mapped.file
    try:
        with ElfImage.open(file.descriptor) as image:
            imports_new = imports_any(image, OPERATORS_NEW)
            is_telling = has_static_probes(image, PROVIDER) or defines_any(image, TELLING_NAMES)
            if not (is_telling or _may_define_inside(image, mapped)):
                # A library must export an allocator for others to use it; a program may hide its own.
                may_hide = mapped.is_program and image.section(".symtab") is None
                return _with_debug_file(code, mapped, image) if may_hide else None, imports_new
    except errors.BadElf:
        return None, False
    return _Candidate(file.key, mapped.mapping, file.content()), imports_new


def _may_define_inside(image: ElfImage, mapped: CodeFile) -> bool:
    """Whether a program has symbols in a compressed section, which helpers unpack."""
    return (
        mapped.is_program and image.section(".symtab") is None and image.section(".gnu_debugdata") is not None
    )


def _with_debug_file(code: ProcessCode, mapped: CodeFile, image: ElfImage) -> _Candidate | None:
    path, key = mapped.mapping.path, mapped.file.key
    debug = debug_file_for_all(image, path)
    if debug is None:
        debug, key = debug_file_in_root(image, path, root_of(code.pid)), key.of_process(code.owner)
    if debug is None:
        return None
    with debug:
        if not isinstance(debug.source, FileBytes) or not defines_any(debug, TELLING_NAMES):
            return None
        symbols = OpenedFile(debug.source.duplicate(), code.owner).content()
    return _Candidate(key, mapped.mapping, mapped.file.content(), symbols)
