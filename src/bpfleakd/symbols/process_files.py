"""The ELF files that one process maps, as modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from bpfleakd.errors import BadElf
from bpfleakd.model.mapping import Mapping
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.module_cache import FileKey, Module, ModuleCache

__all__ = ["ProcessFiles"]

_MappedFile: TypeAlias = tuple[str, int, str]

FILES_MAX = 4_096


class ProcessFiles:
    """Opens what is mapped. `unreadable` counts the files that could not be opened; it is tried again.

    `files` gives a path that opens the file of a mapping, `root` is the target's root directory.
    """

    def __init__(self, files: Callable[[Mapping], str], modules: ModuleCache, root: Path) -> None:
        self.unreadable = 0
        self._files = files
        self._modules = modules
        self._root = root
        self._keys: BoundedCache[_MappedFile, FileKey] = BoundedCache(FILES_MAX)
        self._others: BoundedCache[_MappedFile, bool] = BoundedCache(FILES_MAX)
        self._failed: BoundedCache[_MappedFile, bool] = BoundedCache(FILES_MAX)

    def is_file(self, mapping: Mapping) -> bool:
        """Whether a file is mapped there, of whatever kind."""
        return mapping.inode != 0 and mapping.path.startswith("/")

    def module_of(self, mapping: Mapping) -> Module | None:
        """Return the ELF file that is mapped there; None if it is none or cannot be opened."""
        file = (mapping.device, mapping.inode, mapping.path)
        if not self.is_file(mapping) or self._others.get(file):
            return None
        key = self._keys.get(file)
        module = self._modules.get(key) if key else None
        return module or self._opened(file, mapping)

    def _opened(self, file: _MappedFile, mapping: Mapping) -> Module | None:
        for path in self._paths(mapping):
            try:
                key = self._modules.open(path, mapping.path, self._root)
            except BadElf:
                self._others.put(file, True)
                return None
            except OSError:
                continue
            self._keys.put(file, key)
            return self._modules.get(key)
        if not self._failed.get(file):
            self._failed.put(file, True)
            self.unreadable += 1
        return None

    def _paths(self, mapping: Mapping) -> Iterator[str]:
        path = self._files(mapping)
        # The name of a deleted file may be another file's by now: the library was upgraded.
        if not mapping.deleted or _inode(path) == mapping.inode:
            yield path
        # The process may have ended, and its files under /proc with it.
        if not mapping.deleted and _inode(mapping.path) == mapping.inode:
            yield mapping.path


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except (OSError, ValueError):
        return None
