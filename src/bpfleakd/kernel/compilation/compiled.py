"""Compiled programs with their maps, as values that can be stored in a file.

bcc puts the descriptors of its maps into the instructions. Here they become indexes of `maps`, so a process
without a compiler can load the programs again, with other maps.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from bpfleakd.kernel import bpf
from bpfleakd.kernel.file_cache import FileCache

# struct bpf_insn: code, registers (the source in the upper half), offset, immediate.
_INSTRUCTION = struct.Struct("=BBhi")
_LOAD_WIDE = 0x18  # BPF_LD | BPF_IMM | BPF_DW, two instructions long
_MAP_DESCRIPTOR = 1  # BPF_PSEUDO_MAP_FD, as its source register
# The version of the file format.
_VERSION = 1

# More than the number of attach methods times walkers, so switching between them needs no compiler.
_KEPT = 8
_BYTES_MAX = 16 << 20


class CompiledMap(Struct, frozen=True):
    """A map to create. `template` names the map that inner maps are like, if it is a map of maps."""

    name: str
    type: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int
    template: str | None


class CompiledPrograms(Struct, frozen=True):
    """`functions` maps each C function to its instructions; templates precede the maps that name them."""

    maps: tuple[CompiledMap, ...]
    functions: Mapping[str, bytes]

    @classmethod
    def of_maps(
        cls, map_fds: Mapping[str, int], templates: Mapping[str, str], functions: Mapping[str, bytes]
    ) -> CompiledPrograms:
        """Copy the programs compiled for the maps `map_fds`; `templates` by the maps of maps."""
        order = sorted(map_fds, key=lambda name: name in templates)
        maps = [CompiledMap(name, *bpf.map_info(map_fds[name]), templates.get(name)) for name in order]
        numbers = {map_fds[name]: number for number, name in enumerate(order)}
        return cls(tuple(maps), {name: _with_maps(code, numbers) for name, code in functions.items()})

    def to_json(self) -> bytes:
        """The content of a file, for `from_json`."""
        functions = {name: base64.b64encode(code).decode() for name, code in self.functions.items()}
        maps = [asdict(each) for each in self.maps]
        return json.dumps({"version": _VERSION, "maps": maps, "functions": functions}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> CompiledPrograms:
        """Restore the programs. Raises ValueError, KeyError or TypeError for anything but such a file."""
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        return cls(
            tuple(CompiledMap(**each) for each in content["maps"]),
            {name: base64.b64decode(code, validate=True) for name, code in content["functions"].items()},
        )

    def make_maps(self) -> dict[str, int]:
        """Create the maps; returns their descriptors by name. Raises OSError, and then leaves no map."""
        made: dict[str, int] = {}
        try:
            for each in self.maps:
                inner = made[each.template] if each.template else 0
                made[each.name] = bpf.map_create(
                    each.type, each.key_bytes, each.value_bytes, each.entries, each.flags, each.name, inner
                )
        except OSError:
            for fd in made.values():
                os.close(fd)
            raise
        return made


def with_descriptors(code: bytes, descriptors: list[int]) -> bytes:
    """Replace the numbers of maps in instructions by descriptors."""
    return _with_maps(code, dict(enumerate(descriptors)))


def _with_maps(code: bytes, replacements: Mapping[int, int]) -> bytes:
    """Replace the source of the instructions that load maps."""
    changed = bytearray(code)
    offset = 0
    while offset < len(changed):
        operation, registers, jump, immediate = _INSTRUCTION.unpack_from(changed, offset)
        if operation == _LOAD_WIDE:
            if registers >> 4 == _MAP_DESCRIPTOR:
                named = replacements[immediate]
                _INSTRUCTION.pack_into(changed, offset, operation, registers, jump, named)
            offset += _INSTRUCTION.size
        offset += _INSTRUCTION.size
    return bytes(changed)


class CompileCache:
    """Files in `directory`, created if missing; with None, nothing is cached."""

    def __init__(self, directory: Path | None) -> None:
        self._files: FileCache | None = None
        if directory is not None:
            self._files = FileCache(directory, "programs", files_max=_KEPT, file_bytes_max=_BYTES_MAX)

    def read(self, key: str) -> CompiledPrograms | None:
        """The programs stored as `key`; None if there are none, or none that can be trusted."""
        return None if self._files is None else self._files.read(key, CompiledPrograms.from_json)

    def write(self, key: str, programs: CompiledPrograms) -> None:
        """Store programs, completely or not at all; a failure is logged and otherwise ignored."""
        if self._files is not None:
            self._files.write(key, programs.to_json())


def map_descriptors(library: Any, module: int) -> dict[str, int]:
    """The descriptors of all maps of `module` by name; `library` is bcc.lib.

    bcc's Python interface only knows the maps whose types it can read.
    """
    table_name, table_fd = library.bpf_table_name, library.bpf_table_fd_id
    table_name.restype = ctypes.c_char_p
    for function in (table_name, table_fd):
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.bpf_num_tables.argtypes = [ctypes.c_void_p]
    numbers = range(library.bpf_num_tables(module))
    return {table_name(module, number).decode(): table_fd(module, number) for number in numbers}
