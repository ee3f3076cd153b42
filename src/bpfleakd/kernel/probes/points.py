"""The probe points of a file's allocator functions: searched for, chosen and verified.

Every point is verified in the program's own file: a symbol or the call frame information of that file
confirms the beginning of the function, in an executable segment, and the point is an instruction decoded from
there (prologue.py). Symbols of a separate debug file only give a function's name. A point that cannot be
verified is refused: a breakpoint in the middle of an instruction ends the process that reaches it.

A function that only jumps to another (`operator delete` to `free`) is marked: if the other has a probe, this
one needs none.

Unprivileged helpers (sandbox/) read the files, each one in a separate process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from bpfleakd import errors
from bpfleakd.elf.debug_files import minidebug_image
from bpfleakd.elf.image import EM_X86_64, ElfImage
from bpfleakd.elf.jump_slots import JumpSlots
from bpfleakd.elf.symbols import SymbolTable
from bpfleakd.kernel.probes.announced import announced_probes
from bpfleakd.kernel.probes.pointed import pointed_functions
from bpfleakd.kernel.probes.prologue import (
    argument_registers,
    choose_probe_point,
    instructions,
    internal_jumps,
    is_harmless,
    is_replaced,
    jump_target,
    prologue,
    transfers,
)
from bpfleakd.kernel.probes.syscall_sites import syscall_sites
from bpfleakd.sandbox.helpers import Helpers
from bpfleakd.sandbox.trial_file import TRIAL_FILE
from bpfleakd.unwind.function_starts import function_starts

if TYPE_CHECKING:
    from bpfleakd.kernel.probes.prologue import Instruction

JOBS = ("search",)

SITE_AT_ENTRY, SITE_AT_RETURN = "syscall:", "return:"
"""The beginnings of the names of places that make a system call."""

_LONGEST_FUNCTION_BYTES = 64 * 1024
_LIMIT_S = 10.0


class FunctionProbe(Struct, frozen=True):
    """The probe point of a function: a file offset, and whether the kernel emulates the instruction.

    `registers` hold the wanted arguments there. `entry` is where the function begins, as a virtual address of
    the file. `jumps_to` is the other wanted function that this one only jumps to, with the same arguments.
    `calls_alike`: its code calls another wanted function with the same effect (it frees, or allocates, too).
    `refusal`: why it cannot be probed. `start` is the file offset of the entry, `size_bytes` the length of
    the function.

    A static probe is one too (announced.py): `function` is then "PROVIDER:NAME", `arguments` as its note has
    them, and `semaphore` the file offset of the counter that is incremented while it is probed, or 0. So is a
    place that makes a system call (syscall_sites.py): `function` is "syscall:CALL" or "return:CALL", and
    `entry` where the call returns to.
    """

    function: str
    offset: int
    emulated: bool
    registers: tuple[str, ...] = ()
    entry: int = 0
    jumps_to: str | None = None
    calls_alike: bool = False
    refusal: str = ""
    start: int = 0
    size_bytes: int = 0
    arguments: str = ""
    semaphore: int = 0

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> FunctionProbe:
        """Restore a JSON object made of `asdict`. Raises TypeError or KeyError."""
        return cls(**{**row, "registers": tuple(row["registers"])})


class WantedFunction(Struct, frozen=True):
    """A wanted function: the registers of the relevant arguments at its entry.

    Functions with the same `effect` treat these arguments alike.
    """

    name: str
    arguments: tuple[str, ...]
    effect: str
    release: bool


class SearchedFile(Struct, frozen=True):
    """Open descriptors of an ELF file to search, and of the separate file with its symbols, or None.

    `name` is for messages.
    """

    name: str
    descriptor: int
    debug_descriptor: int | None = None


class _Found(msgspec.Struct, frozen=True, tag=True):
    """A helper's findings, or why the file cannot be understood."""

    probes: tuple[FunctionProbe, ...] = ()
    failure: str = ""
    hint: str = ""


def search_file(
    helpers: Helpers, file: SearchedFile, functions: Sequence[WantedFunction]
) -> list[FunctionProbe]:
    """The probe points of the functions that a file defines.

    Raises BadElf if its bytes cannot be understood, and HelperFailed if the helper failed.
    """
    descriptors = [fd for fd in (file.descriptor, file.debug_descriptor) if fd is not None]
    arguments = file.name, [asdict(function) for function in functions]
    found = helpers.answer(f"{__name__}:search", arguments, descriptors, _Found, limit_s=_LIMIT_S)
    if found.failure:
        raise errors.BadElf(found.failure, found.hint)
    return list(found.probes)


# The helper's side


def prepare() -> None:
    """Load all that is needed while files can still be opened, by searching one of bpfleakd's own files."""
    with open(TRIAL_FILE, "rb") as file:
        file_fd = file.fileno()
        _search(
            SearchedFile(TRIAL_FILE, file_fd, file_fd), [WantedFunction("main", ("rdi",), "", release=False)]
        )
        with ElfImage.open(file_fd) as image:
            function_starts(image)
    choose_probe_point(b"\x55\xc3", release=False, arguments=())


def search(files: Sequence[int], arguments: Any, answer: Callable[[object], None]) -> None:
    """Find functions in the first file, with symbols from a second one if given; choose their points."""
    name, functions = arguments
    wanted = [
        WantedFunction(**{**function, "arguments": tuple(function["arguments"])}) for function in functions
    ]
    try:
        answer(_Found(tuple(_search(SearchedFile(name, *files), wanted))))
    except errors.BadElf as error:
        answer(_Found(failure=error.message, hint=error.hint))
    except OSError as error:
        answer(_Found(failure=f"{name} cannot be read: {error.strerror}"))


def _search(file: SearchedFile, functions: Sequence[WantedFunction]) -> list[FunctionProbe]:
    with contextlib.ExitStack() as stack:
        image = stack.enter_context(ElfImage.open(file.descriptor))
        if image.machine != EM_X86_64:
            raise errors.BadElf(
                f"{file.name} is for machine {image.machine}, not x86-64",
                "32-bit programs cannot be traced",
            )
        separate = file.debug_descriptor
        debug = minidebug_image(image) if separate is None else ElfImage.open(separate)
        images = [image, stack.enter_context(debug)] if debug else [image]
        search = _Search(image, SymbolTable(images), functions)
        starts = sorted(search.starts)
        return [*search.probes(), *_static_probes(image, starts), *_site_probes(image, starts)]


def _static_probes(image: ElfImage, starts: Sequence[int]) -> Iterator[FunctionProbe]:
    for probe in announced_probes(image, starts, instructions):
        yield FunctionProbe(
            probe.name,
            probe.offset,
            probe.emulated,
            entry=probe.vaddr,
            refusal=probe.refusal,
            arguments=probe.arguments,
            semaphore=probe.semaphore,
        )


def _site_probes(image: ElfImage, starts: Sequence[int]) -> Iterator[FunctionProbe]:
    for site in syscall_sites(image, starts, instructions, internal_jumps):
        offset = image.file_offset_of(site.vaddr) or 0
        yield FunctionProbe(
            f"{SITE_AT_RETURN if site.at_return else SITE_AT_ENTRY}{site.call.name.lower()}",
            offset,
            site.emulated,
            entry=site.vaddr - site.distance,
            start=offset - site.distance,
            refusal=site.refusal,
        )


class _Search:
    """The wanted functions that one file defines."""

    def __init__(self, image: ElfImage, symbols: SymbolTable, functions: Sequence[WantedFunction]) -> None:
        self._image = image
        self._symbols = symbols
        self._slots = JumpSlots(image)
        self._own_entries = frozenset(
            SymbolTable([image]).addresses_of({function.name for function in functions}).values()
        )
        self._functions = {function.name: function for function in functions}
        self._entries = {
            name: vaddr
            for name, vaddr in symbols.addresses_of(self._functions).items()
            if image.file_offset_of(vaddr) is not None
        } | pointed_functions(image, self._functions)
        self._names_at: dict[int, list[str]] = {}
        for name, vaddr in self._entries.items():
            self._names_at.setdefault(vaddr, []).append(name)

    def probes(self) -> list[FunctionProbe]:
        return [self._verified_probe(self._functions[name], vaddr) for name, vaddr in self._entries.items()]

    def _verified_probe(self, function: WantedFunction, vaddr: int) -> FunctionProbe:
        refusal = self._refusal(vaddr)
        if refusal:
            return FunctionProbe(function.name, 0, emulated=False, entry=vaddr, refusal=refusal)
        return self._probe(function, vaddr)

    def _refusal(self, vaddr: int) -> str:
        """Why the program's own file does not confirm a function's beginning there; "" if it does."""
        if not any(s.executable and 0 <= vaddr - s.vaddr < s.file_size_bytes for s in self._image.segments):
            return f"{vaddr:#x} is not in an executable segment"
        if vaddr not in self._own_entries and vaddr not in self.starts:
            return f"a function does not begin at {vaddr:#x}, according to the file itself"
        return ""

    @cached_property
    def starts(self) -> frozenset[int]:
        """The beginnings of functions according to the file's call frame information."""
        return function_starts(self._image)

    def _probe(self, function: WantedFunction, vaddr: int) -> FunctionProbe:
        symbol = self._symbols.lookup(vaddr)
        size_bytes = min(symbol.size_bytes if symbol else 64, _LONGEST_FUNCTION_BYTES)
        code = self._image.read(vaddr, size_bytes)
        distance, emulated = choose_probe_point(code, release=function.release, arguments=function.arguments)
        if is_replaced(code[distance:]):
            refusal = "it begins with a nop of 5 bytes, where Linux 6.18 places a call that ends children"
            return FunctionProbe(function.name, 0, emulated=False, entry=vaddr, refusal=refusal)
        return FunctionProbe(
            function=function.name,
            offset=(self._image.file_offset_of(vaddr) or 0) + distance,
            start=self._image.file_offset_of(vaddr) or 0,
            size_bytes=size_bytes,
            emulated=emulated,
            registers=argument_registers(code, distance, function.arguments),
            entry=vaddr,
            jumps_to=self._jumps_to(function, vaddr, code),
            calls_alike=self._calls_alike(function, vaddr, code),
        )

    def _calls_alike(self, function: WantedFunction, vaddr: int, code: bytes) -> bool:
        targets = {target for _is_call, target in transfers(code) if not 0 <= target < len(code)}
        names = {name for target in targets for name in self._names_behind(vaddr + target)}
        others = (self._functions[name] for name in names if name in self._functions)
        return any(other.arguments and other.release == function.release for other in others)

    def _jumps_to(self, function: WantedFunction, vaddr: int, code: bytes) -> str | None:
        """The wanted function with the same effect that this one only jumps to."""
        for instruction, holders in prologue(code):
            if instruction.mnemonic.rpartition(" ")[2] == "jmp":
                names = self._jump_targets(instruction, vaddr)
                return next((n for n in names if self._is_same(function, n, vaddr, holders)), None)
            if not is_harmless(instruction):
                return None
        return None

    def _jump_targets(self, jump: Instruction, vaddr: int) -> list[str]:
        target = jump_target(jump)
        if target is None:
            return []
        if target.is_slot:
            return [self._slots.function_of(vaddr + target.distance) or ""]
        return self._names_behind(vaddr + target.distance)

    def _names_behind(self, target: int) -> list[str]:
        return self._names_at.get(target) or [self._slots.behind_stub(target) or ""]

    def _is_same(self, function: WantedFunction, name: str, vaddr: int, holders: Mapping[str, str]) -> bool:
        other = self._functions.get(name)
        return (
            other is not None
            and self._entries.get(name, vaddr) != vaddr
            and other.effect == function.effect
            and [holders.get(register) for register in other.arguments] == list(function.arguments)
        )
