"""Modules: the ELF files that processes map, open with their symbols, shared between processes.

A file is known by its `FileKey`, not by its build-id: anybody can write a library with the build-id of libc,
and would then choose the names in the stacks of others. Debug files of a process' own root directory are of a
module that is its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TypeAlias

from bpfleakd.elf.byte_source import FileBytes
from bpfleakd.elf.debug_files import has_line_tables, minidebug_image
from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.symbols import Symbol, SymbolTable
from bpfleakd.errors import BadElf
from bpfleakd.process.debug_search import debug_file_for_all
from bpfleakd.process.mapped_files import FileKey, OpenedFile

__all__ = ["DebugSearch", "Module", "ModuleCache"]

DebugSearch: TypeAlias = Callable[[ElfImage, str], ElfImage | None]
"""Finds the debug file of an image that is mapped under a path."""


class Module:
    """One open ELF file. Symbols and debug files are looked for when an address is asked for."""

    def __init__(self, image: ElfImage, path: str, find_debug_file: DebugSearch, identity: str = "") -> None:
        """`path` is the file's path as the target sees it; `identity` tells its source lines from others'."""
        self.image = image
        self.build_id = image.build_id
        self.identity = identity
        self._path = path
        self._find_debug_file = find_debug_file
        self._debug_image: ElfImage | None = None
        self._symbols: SymbolTable | None = None
        self._has_looked_for_debug_files = False
        self._is_broken = False

    def symbol(self, vaddr: int) -> Symbol | None:
        """Return the function around an address; none where the file turns out to be broken."""
        if self._is_broken:
            return None
        try:
            if self._symbols is None:
                self._open_debug_files()
                self._symbols = SymbolTable(list(self._images()))
            return self._symbols.lookup(vaddr)
        except BadElf:
            # Cut since it was opened, or its symbols were never whole.
            self._is_broken = True
            return None

    def vaddr_of(self, file_offset: int) -> int | None:
        """Return the address of a byte of the file, None outside its segments."""
        return self.image.vaddr_of(file_offset)

    @property
    def lines_path(self) -> str | None:
        """A path that opens the file with the DWARF of this module, or None."""
        if self._is_broken:
            return None
        try:
            self._open_debug_files()
            return next((self._path_of(image) for image in self._images() if has_line_tables(image)), None)
        except BadElf:
            return None

    @property
    def has_own_names(self) -> bool:
        """Whether the names are all there are to be had, so that no other debug file is needed."""
        try:
            self._open_debug_files()
            return self._debug_image is not None or self.image.section(".symtab") is not None
        except BadElf:
            return True

    @property
    def size_bytes(self) -> int:
        """How much memory the symbols take."""
        return self._symbols.size_bytes if self._symbols else 0

    def drop_symbols(self) -> None:
        """Drop the symbols, which are read again when an address is asked for."""
        self._symbols = None

    def close(self) -> None:
        """Close the files."""
        self._is_broken = True
        for image in self._images():
            image.close()

    def _path_of(self, image: ElfImage) -> str | None:
        return image.source.descriptor_path if isinstance(image.source, FileBytes) else None

    def _images(self) -> Iterator[ElfImage]:
        yield self.image
        if self._debug_image is not None:
            yield self._debug_image

    def _open_debug_files(self) -> None:
        if self._has_looked_for_debug_files:
            return
        self._has_looked_for_debug_files = True
        if self.image.section(".symtab") and has_line_tables(self.image):
            return
        try:
            found = self._find_debug_file(self.image, self._path)
            self._debug_image = found or minidebug_image(self.image)
        except (BadElf, OSError):
            self._debug_image = None


class ModuleCache:
    """The `modules_max` modules used last, with symbols for at most about `symbols_max_bytes`."""

    def __init__(self, modules_max: int = 64, symbols_max_bytes: int = 12 << 20) -> None:
        self._modules_max = modules_max
        self._symbols_max_bytes = symbols_max_bytes
        self._modules: OrderedDict[FileKey, Module] = OrderedDict()

    def __len__(self) -> int:
        return len(self._modules)

    def get(self, key: FileKey) -> Module | None:
        """Return a module that is open. It is to be used before the next is asked for."""
        module = self._modules.get(key)
        if module is not None:
            self._modules.move_to_end(key)
            self._trim()
        return module

    def open(self, file: OpenedFile, path: str, owner: str, debug_in_root: DebugSearch | None) -> FileKey:
        """Open a file unless it is open; returns the key of the module for the process `owner`.

        `debug_in_root` finds what that process brings along; None if it sees the same files as we do.
        Raises `BadElf` for what is no ELF file, `OSError` for what cannot be opened.
        """
        module = self._opened(file.key, file, path, debug_file_for_all)
        if debug_in_root is None or module.has_own_names:
            return file.key
        key = file.key.of_process(owner)
        self._opened(key, file, path, debug_in_root)
        return key

    def _opened(self, key: FileKey, file: OpenedFile, path: str, find_debug_file: DebugSearch) -> Module:
        if key not in self._modules:
            image = ElfImage.open(file.descriptor)
            self._modules[key] = Module(image, path, find_debug_file, repr(key))
            self._trim()
        return self._modules[key]

    def drop_symbols(self) -> None:
        """Drop all symbols, which are read again when an address is asked for."""
        for module in self._modules.values():
            module.drop_symbols()

    def close(self) -> None:
        """Close all modules."""
        while self._modules:
            self._modules.popitem()[1].close()

    def _trim(self) -> None:
        while len(self._modules) > self._modules_max:
            self._modules.popitem(last=False)[1].close()
        *others, _ = self._modules.values()
        excess = sum(module.size_bytes for module in self._modules.values()) - self._symbols_max_bytes
        for module in others:
            if excess <= 0:
                break
            excess -= module.size_bytes
            module.drop_symbols()
