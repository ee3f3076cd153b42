"""The Go code of a running process: its runtime, the runtime's variables, and the names of functions.

Go's runtime is in the program, or in a library that Go made for programs in other languages
(`-buildmode=c-shared`). Plugins are libraries of Go code that use the runtime of the Go program.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.elf.image import ElfImage
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.method import Method
from bpfleakd.printable import printable
from bpfleakd.process.files.mapped_files import FileKey
from bpfleakd.process.files.process_code import CodeFile, ProcessCode
from bpfleakd.runtimes.go.goroutines import Goroutines
from bpfleakd.runtimes.go.heap_profile import BUCKETS_MAX, GoHeapProfile
from bpfleakd.runtimes.go.memory import ProcessMemory
from bpfleakd.runtimes.go.pacer import Pacer, find_pacer
from bpfleakd.runtimes.go.variables import Variables, find_variables
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.go.code import GoCode, read_go_code

_BUCKETS_CHECKED, _STACKS_CHECKED = 1000, 100
# A stack may begin in C code, or in code generated at run time.
_STRANGE_SHARE = 0.2
_INSTEAD = "its own heap profile, if it serves one (/debug/pprof/heap), shows its live memory"
# Where a library with its own runtime begins (runtime/rt0_linux_amd64.s); no other program has it.
_LIBRARY_START = "_rt0_amd64_linux_lib"
_PLUGINS_MAX = _LIBRARIES_MAX = 64
_FILES_MAX = 4096

_of_others: BoundedCache[FileKey, bool] = BoundedCache(_FILES_MAX)


class GoModule(Struct, frozen=True):
    """Go code of one file. `bias` is added to the addresses of the file; `name` is the file's name."""

    code: GoCode
    bias: int
    name: str
    inode: int
    image: ElfImage

    def has(self, address: int) -> bool:
        """Whether an address is in Go code of the file."""
        return self.code.module.text <= address - self.bias < self.code.module.end_of_text


class GoProgram(Struct, frozen=True):
    """The Go code of one process.

    `main` has the runtime; `is_library`: it is a library for another program.
    """

    main: GoModule
    variables: Variables
    memory: ProcessMemory
    is_library: bool = False
    plugins: list[GoModule] = msgspec.field(default_factory=list)

    def heap_profile(self, buckets_max: int = BUCKETS_MAX) -> GoHeapProfile:
        """The heap profile, not yet read."""
        bias, found = self.main.bias, self.variables
        at = bias + found.buckets, bias + found.cycle, bias + found.rate
        return GoHeapProfile(self.memory, self.main.code.layout.counters, at, buckets_max)

    @property
    def calls_c(self) -> bool:
        """Whether a package of the program calls C (cgo)."""
        return self.main.code.table.has_name_with(b"._Cfunc_")

    @property
    def rate_address(self) -> int:
        """The address of MemProfileRate."""
        return self.main.bias + self.variables.rate

    def pacer(self) -> Pacer | None:
        """The collector's pacing; None if its place is unknown."""
        layout = self.main.code.layout
        at = [self.main.bias + address for address in self.variables.pacers]
        return find_pacer(self.memory, at, has_limit=layout.has_memory_limit)

    def goroutines(self) -> Goroutines | None:
        """Its goroutines; None if their place is unknown."""
        found, bias = self.variables, self.main.bias
        if not (found.goroutines and found.goroutine_count):
            return None
        reasons = bias + found.wait_reasons if found.wait_reasons else 0
        at = bias + found.goroutines, bias + found.goroutine_count
        return Goroutines(self.memory, *at, reasons, self._is_entry)

    def module_at(self, address: int) -> GoModule:
        """The file whose Go code is at an address; `main` if there is none."""
        return next((module for module in self.plugins if module.has(address)), self.main)

    def function_at(self, address: int) -> Method | None:
        """The function that begins at an address."""
        module = self.module_at(address)
        found = module.code.table.frames(address - module.bias)
        return found[-1] if found else None

    def function_around(self, address: int) -> str | None:
        """The name of the function that contains an address."""
        module = self.module_at(address)
        found = module.code.table.find(address - module.bias)
        return found.name if found else None

    def _is_entry(self, address: int) -> bool:
        module = self.module_at(address)
        function = module.code.table.find(address - module.bias)
        return function is not None and function.entry == address - module.bias

    def method(self, return_address: int) -> Method | None:
        """The logical function of a return address in a recorded stack."""
        module = self.module_at(return_address - 1)
        found = module.code.table.logical_frame(return_address - 1 - module.bias)
        return found if found and found.name else None

    def has_code_at(self, address: int) -> bool:
        """Whether there is Go code at an address."""
        return self.module_at(address).has(address)

    @property
    def modules(self) -> tuple[GoModule, ...]:
        """The files with its code."""
        return (self.main, *self.plugins)

    def close(self) -> None:
        """Close what is open."""
        self.memory.close()
        for module in self.modules:
            module.image.close()


class FoundGo(Struct, frozen=True):
    """The Go code of a process. `unread` are sentences on the unread parts."""

    program: GoProgram | None = None
    unread: tuple[str, ...] = ()

    @property
    def is_programs(self) -> bool:
        """Whether the program itself is Go's: then it needs no other allocator."""
        return self.program is not None and not self.program.is_library

    def close(self) -> None:
        """Close what is open."""
        if self.program is not None:
            self.program.close()


def find_go(code: ProcessCode) -> FoundGo:
    """Find the Go code that a process has mapped.

    Raises TargetRefused for an unsupported Go program, NoSuchProcess or AccessDenied.
    """
    program = _go_program(code)
    found = FoundGo(program)
    try:
        found = find_more_go(code, found)
        if found.program is not None:
            _check(found.program)
        return found
    except BaseException as error:
        if found.program is not None:
            found.program.close()
        if not isinstance(error, errors.BadElf):
            raise
        if program is None:
            return _with_unread(replace(found, program=None), f"a Go heap is not visible: {error.message}")
        raise _refused(code.pid, error.message) from error


def find_more_go(code: ProcessCode, found: FoundGo) -> FoundGo:
    """Add libraries of Go code that a process has mapped to what was found.

    Raises NoSuchProcess, or NotYet if the process keeps its readers waiting.
    """
    known = {module.inode for module in found.program.modules} if found.program is not None else set()
    for inode, image in islice(_go_libraries(code.files.values(), known), _LIBRARIES_MAX):
        try:
            like = found.program.main.code if found.program is not None else None
            found = _with_library(code.pid, found, _module(image, inode, code.mappings, like))
        except (errors.BadElf, errors.AccessDenied, OSError) as error:
            reason = str(error) if isinstance(error, OSError) else error.message
            found = _with_unread(found, f"a Go heap is not visible: {reason}")
        finally:
            is_used = found.program is not None and any(m.image is image for m in found.program.modules)
            if not is_used:
                image.close()
    return found


def _with_library(pid: int, found: FoundGo, module: GoModule) -> FoundGo:
    """Raises BadElf if it is not supported."""
    program = found.program
    if not _is_library(module.code):
        if program is not None and len(program.plugins) < _PLUGINS_MAX:
            program.plugins.append(module)
        return found
    if program is None:
        return replace(found, program=_with_variables(module, pid))
    words = (
        f"the Go heap of {printable(module.name)} is not visible: of several Go runtimes in a process one is"
        f" read, here that of {printable(program.main.name)}"
    )
    return _with_unread(found, words)


def _is_library(code: GoCode) -> bool:
    """Whether it is a library for programs in other languages, with a separate runtime."""
    return bool(code.table.named({_LIBRARY_START}))


def _with_variables(module: GoModule, pid: int) -> GoProgram:
    """Raises BadElf, NoSuchProcess or AccessDenied."""
    code = module.code
    variables = find_variables(module.image, code.table, code.module)
    return GoProgram(module, variables, ProcessMemory(pid), is_library=_is_library(code))


def _with_unread(found: FoundGo, words: str) -> FoundGo:
    return found if words in found.unread else replace(found, unread=(*found.unread, words))


def _refused(pid: int, reason: str) -> errors.TargetRefused:
    return errors.TargetRefused(f"process {pid} is an unsupported Go program: {reason}", _INSTEAD)


def _go_libraries(files: Iterable[CodeFile], known: Collection[int]) -> Iterator[tuple[int, ElfImage]]:
    """Yield the files with Go code and their inodes, each opened permanently, except `known` inodes."""
    for code in files:
        file, inode = code.file, code.mapping.inode
        if inode in known or _of_others.get(file.key):
            continue
        try:
            image = ElfImage.open(file.descriptor)
        except (errors.BadElf, OSError):
            continue
        if image.is_go:
            yield inode, image
        else:
            image.close()
            _of_others.put(file.key, True)


def _go_program(code: ProcessCode) -> GoProgram | None:
    """The executable of a process if it is a Go program; else None. Raises the errors of find_go."""
    pid, program = code.pid, code.program
    if program is None and code.lacks_program:
        if code.unanswered:
            raise errors.NotYet(f"the program of process {pid} is still being read")
        raise errors.NoSuchProcess(f"process {pid} has ended, or has no executable file")
    if program is None:
        return None
    try:
        image = ElfImage.open(program.file.descriptor)
    except OSError as error:
        raise errors.NoSuchProcess(f"process {pid} has ended, or has no executable file") from error
    try:
        if not image.is_go:
            image.close()
            return None
        return _with_variables(_module(image, program.mapping.inode, code.mappings), pid)
    except (errors.BadElf, OSError) as error:
        image.close()
        raise _refused(pid, error.message if isinstance(error, errors.BadElf) else str(error)) from error
    except BaseException:
        image.close()
        raise


def _module(
    image: ElfImage, inode: int, mappings: Sequence[Mapping], program: GoCode | None = None
) -> GoModule:
    """The Go code of a file where it is mapped, of a plugin of `program` if any. Raises BadElf."""
    code = read_go_code(image, program)
    for mapping in mappings:
        vaddr = image.vaddr_of(mapping.offset)
        if mapping.executable and mapping.inode == inode and vaddr is not None:
            return GoModule(code, mapping.start - vaddr, os.path.basename(mapping.path), inode, image)
    raise errors.BadElf("its code is not mapped")


def _check(program: GoProgram) -> None:
    """Raise BadElf if the profile does not have the layout of its version."""
    profile = program.heap_profile(_BUCKETS_CHECKED)
    profile.buckets()
    stacks = profile.some_stacks(_STACKS_CHECKED)
    strange = sum(not program.has_code_at(stack[0]) for stack in stacks if stack)
    if not profile.is_trustworthy or strange > _STRANGE_SHARE * len(stacks):
        raise errors.BadElf(f"its heap profile does not look like that of {program.main.code.version}")
