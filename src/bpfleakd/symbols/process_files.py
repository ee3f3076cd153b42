"""The ELF files that one process maps, as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.files.mapped_files import FileKey, OpenedFile, open_unchanged
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.symbols.module_cache import DebugSearch, Module, ModuleCache

_MappedFile: TypeAlias = tuple[str, int, str]

FILES_MAX = 4_096


class ProcessFiles:
    """Opens mapped files. `unreadable` counts the files that could not be opened; they are tried again.

    `open_file` opens the file of a mapping, or raises OSError, TimeoutError if it may be opened later.
    `owner` identifies the process, and `debug_in_root` finds debug files that only it sees, if any.
    """

    def __init__(
        self,
        open_file: Callable[[Mapping], OpenedFile],
        modules: ModuleCache,
        owner: str,
        debug_in_root: DebugSearch | None = None,
    ) -> None:
        self.unreadable = 0
        self._open_file = open_file
        self._modules = modules
        self._owner = owner
        self._debug_in_root = debug_in_root
        self._keys: BoundedCache[_MappedFile, FileKey] = BoundedCache(FILES_MAX)
        self._not_code: BoundedCache[_MappedFile, bool] = BoundedCache(FILES_MAX)
        self._failed: BoundedCache[_MappedFile, bool] = BoundedCache(FILES_MAX)

    def is_file(self, mapping: Mapping) -> bool:
        """Whether any kind of file is mapped there."""
        return mapping.inode != 0 and mapping.path.startswith("/")

    def module_of(self, mapping: Mapping) -> Module | None:
        """Return the ELF file that is mapped there; None if it is not one or cannot be opened."""
        file = (mapping.device, mapping.inode, mapping.path)
        if not self.is_file(mapping) or self._not_code.get(file):
            return None
        key = self._keys.get(file)
        module = self._modules.get(key) if key else None
        return module or self._opened(file, mapping)

    def open(self, mapping: Mapping) -> OpenedFile:
        """Open a mapped file for uses beyond names of code. Raises OSError. Thread-safe."""
        return self._open_file(mapping)

    def _opened(self, file: _MappedFile, mapping: Mapping) -> Module | None:
        try:
            opened = self._open(mapping)
            key = self._modules.open(opened, mapping.path, self._owner, self._debug_in_root)
        except BadElf:
            self._not_code.put(file, True)
            return None
        except OSError:
            if not self._failed.get(file):
                self._failed.put(file, True)
                self.unreadable += 1
            return None
        self._keys.put(file, key)
        return self._modules.get(key)

    def _open(self, mapping: Mapping) -> OpenedFile:
        try:
            opened = self._open_file(mapping)
            # The name of a deleted file may belong to another file: the library was upgraded.
            if opened.key.inode == mapping.inode:
                return opened
        except TimeoutError:
            raise
        except OSError:
            pass
        # The process may have ended, and its files in /proc with it.
        return open_unchanged(mapping, self._owner)
