"""Modules: open ELF files that processes map, shared between processes.

A file is identified by its `FileKey`, not by its build-id: anybody could write a library with the build-id of
libc, and choose the names in other processes' stacks. Debug files of a process' own root directory belong to
a module of that process alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from bpfleakd.elf.byte_source import FileBytes
from bpfleakd.elf.debug_files import has_line_tables
from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.process.files.debug_search import debug_file_for_all
from bpfleakd.process.files.mapped_files import FileKey, OpenedFile

DebugSearch: TypeAlias = Callable[[ElfImage, str], ElfImage | None]
"""Finds the debug file of an image that is mapped under a path."""


class Module:
    """One open ELF file. Debug files are located when a name is needed. Used by several threads."""

    def __init__(self, image: ElfImage, path: str, find_debug_file: DebugSearch, identity: str) -> None:
        """`path` is the file's path as the target sees it; `identity` is the key of its names."""
        self.image = image
        self.build_id = image.build_id
        self.identity = identity
        self.lines_failed = False
        self._path = path
        self._find_debug_file = find_debug_file
        self._debug_image: ElfImage | None = None
        self._has_looked_for_debug_files = False
        self._is_closed = False
        self._lock = threading.Lock()

    def vaddr_of(self, file_offset: int) -> int | None:
        """Return the address of a byte of the file, None outside its segments."""
        return self.image.vaddr_of(file_offset)

    def duplicate_files(self) -> list[int]:
        """Descriptors of the file and of its debug file, if any; the caller owns them.

        Empty after `close`.
        """
        with self._lock:
            if self._is_closed:
                return []
            self._open_debug_file()
            images = (self.image, self._debug_image)
            return [
                image.source.duplicate() for image in images if image and isinstance(image.source, FileBytes)
            ]

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            self._is_closed = True
            self.image.close()
            if self._debug_image is not None:
                self._debug_image.close()

    def _open_debug_file(self) -> None:
        if self._has_looked_for_debug_files:
            return
        self._has_looked_for_debug_files = True
        with contextlib.suppress(BadElf, OSError):
            if not (self.image.section(".symtab") and has_line_tables(self.image)):
                self._debug_image = self._find_debug_file(self.image, self._path)


class ModuleCache:
    """The `modules_max` most recently used modules."""

    def __init__(self, modules_max: int = 64) -> None:
        self._modules_max = modules_max
        self._modules: OrderedDict[FileKey, Module] = OrderedDict()

    def __len__(self) -> int:
        return len(self._modules)

    def get(self, key: FileKey) -> Module | None:
        """Return an open module. Use it before you request the next one."""
        module = self._modules.get(key)
        if module is not None:
            self._modules.move_to_end(key)
        return module

    def open(self, file: OpenedFile, path: str, owner: str, debug_in_root: DebugSearch | None) -> FileKey:
        """Open a file unless it is open; returns the key of the module for the process `owner`.

        `debug_in_root` finds debug files of that process; None if it sees the same files as the daemon.
        Raises `BadElf` if it is not an ELF file, `OSError` if it cannot be opened.
        """
        key = file.key if debug_in_root is None else file.key.of_process(owner)
        if key not in self._modules:
            image = ElfImage.open(file.descriptor)
            find = (
                debug_file_for_all if debug_in_root is None else _first_of(debug_file_for_all, debug_in_root)
            )
            self._modules[key] = Module(image, path, find, repr(key))
            while len(self._modules) > self._modules_max:
                self._modules.popitem(last=False)[1].close()
        return key

    def close(self) -> None:
        """Close all modules."""
        while self._modules:
            self._modules.popitem()[1].close()


def _first_of(*searches: DebugSearch) -> DebugSearch:
    def find(image: ElfImage, path: str) -> ElfImage | None:
        return next((found for search in searches if (found := search(image, path))), None)

    return find
