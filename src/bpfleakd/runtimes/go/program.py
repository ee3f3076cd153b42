"""A running Go program: its version, the variables of its runtime, and the names of its functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from bpfleakd import errors
from bpfleakd.elf.image import ElfImage
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.method import Method
from bpfleakd.runtimes.go.goroutines import Goroutines
from bpfleakd.runtimes.go.heap_profile import BUCKETS_MAX, HeapProfile
from bpfleakd.runtimes.go.memory import ProcessMemory
from bpfleakd.runtimes.go.variables import Variables, find_variables
from bpfleakd.symbols.go.code import GoCode, read_go_code

__all__ = ["GoProgram", "open_go_program"]

_BUCKETS_CHECKED, _STACKS_CHECKED = 1000, 100
# A stack may begin in C code, or in code made at run time.
_STRANGE_SHARE = 0.2
_INSTEAD = "its own heap profile, if it serves one (/debug/pprof/heap), shows what it keeps"


@dataclass(frozen=True, slots=True)
class GoProgram:
    """One process. `bias` is what is added to the addresses of its file, `module` its file's name."""

    code: GoCode
    variables: Variables
    memory: ProcessMemory
    bias: int
    module: str
    _image: ElfImage

    def heap_profile(self, buckets_max: int = BUCKETS_MAX) -> HeapProfile:
        """The heap profile, of which nothing is read yet."""
        bias, found = self.bias, self.variables
        at = bias + found.buckets, bias + found.cycle, bias + found.rate
        return HeapProfile(self.memory, self.code.layout.counters, at, buckets_max)

    @property
    def calls_c(self) -> bool:
        """Whether a package of the program calls C (cgo)."""
        return self.code.table.has_name_with(b"._Cfunc_")

    @property
    def rate_address(self) -> int:
        """Where MemProfileRate is."""
        return self.bias + self.variables.rate

    def goroutines(self) -> Goroutines | None:
        """Its goroutines; None if it is not known where they are."""
        found = self.variables
        if not (found.goroutines and found.goroutine_count):
            return None
        reasons = self.bias + found.wait_reasons if found.wait_reasons else 0
        at = self.bias + found.goroutines, self.bias + found.goroutine_count
        return Goroutines(self.memory, *at, reasons, self._is_entry)

    def function_at(self, address: int) -> Method | None:
        """The function that begins at an address."""
        found = self.code.table.frames(address - self.bias)
        return found[-1] if found else None

    def function_around(self, address: int) -> str | None:
        """The name of the function that an address is in."""
        found = self.code.table.find(address - self.bias)
        return found.name if found else None

    def _is_entry(self, address: int) -> bool:
        function = self.code.table.find(address - self.bias)
        return function is not None and function.entry == address - self.bias

    def method(self, return_address: int) -> Method | None:
        """The logical function that a return address of a recorded stack is of."""
        found = self.code.table.logical_frame(return_address - 1 - self.bias)
        return found if found and found.name else None

    def has_code_at(self, address: int) -> bool:
        """Whether there is Go code at an address."""
        return self.code.module.text <= address - self.bias < self.code.module.end_of_text

    def close(self) -> None:
        """Close what is open."""
        self.memory.close()
        self._image.close()


def open_go_program(pid: int, mappings: Sequence[Mapping]) -> GoProgram | None:
    """Open what a process executes, if Go made it; None if not.

    Raises TargetRefused if it is not understood, NoSuchProcess or AccessDenied.
    """
    path = f"/proc/{pid}/exe"
    try:
        image = ElfImage.open(path)
    except OSError as error:
        raise errors.NoSuchProcess(f"process {pid} has ended, or has no executable file") from error
    try:
        if not image.is_go:
            image.close()
            return None
        return _opened(pid, image, os.stat(path).st_ino, mappings)
    except (errors.BadElf, OSError) as error:
        image.close()
        reason = error.message if isinstance(error, errors.BadElf) else str(error)
        raise errors.TargetRefused(
            f"process {pid} is an unsupported Go program: {reason}", _INSTEAD
        ) from error
    except BaseException:
        image.close()
        raise


def _opened(pid: int, image: ElfImage, inode: int, mappings: Sequence[Mapping]) -> GoProgram:
    code = read_go_code(image)
    variables = find_variables(image, code.table, code.module)
    for mapping in mappings:
        vaddr = image.vaddr_of(mapping.offset)
        if mapping.executable and mapping.inode == inode and vaddr is not None:
            module = os.path.basename(mapping.path)
            program = GoProgram(code, variables, ProcessMemory(pid), mapping.start - vaddr, module, image)
            _check(program)
            return program
    raise errors.BadElf("its code is not mapped")


def _check(program: GoProgram) -> None:
    """Raises BadElf if the profile is not laid out as that of its version should be."""
    profile = program.heap_profile(_BUCKETS_CHECKED)
    profile.buckets()
    stacks = profile.some_stacks(_STACKS_CHECKED)
    strange = sum(not program.has_code_at(stack[0]) for stack in stacks if stack)
    if not profile.is_trustworthy or strange > _STRANGE_SHARE * len(stacks):
        program.memory.close()
        raise errors.BadElf(f"its heap profile does not look like that of {program.code.version}")
