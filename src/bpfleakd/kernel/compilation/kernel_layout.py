"""Where fields are in the kernel's structures, as its own BTF says (Documentation/bpf/btf.rst).

The programs read them to learn which file a process maps (bpf/code.h).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from pathlib import Path

_BTF = Path("/sys/kernel/btf/vmlinux")
_HEADER = struct.Struct("=HBBIIIII")
_MAGIC = 0xEB9F
_TYPE = struct.Struct("=III")
_MEMBER = struct.Struct("=III")
_STRUCT, _UNION = 4, 5
# What follows the header of a type, in bytes, by its kind: for itself, and for each of its elements.
_TRAILER = {1: 4, 3: 12, 14: 4, 17: 4}
_ELEMENTS = {_STRUCT: 12, _UNION: 12, 6: 8, 13: 8, 15: 12, 19: 12}

# Structure, field. A flag is named AT_STRUCTURE_FIELD.
_FIELDS = (
    ("task_struct", "files"),
    ("task_struct", "fs"),
    ("fs_struct", "root"),
    ("files_struct", "fdt"),
    ("fdtable", "max_fds"),
    ("fdtable", "fd"),
    ("file", "f_inode"),
    ("file", "f_path"),
    ("path", "mnt"),
    ("path", "dentry"),
    ("inode", "i_ino"),
    ("inode", "i_sb"),
    ("super_block", "s_dev"),
    ("dentry", "d_parent"),
    ("dentry", "d_name"),
    ("qstr", "name"),
    ("vfsmount", "mnt_root"),
    ("mount", "mnt"),
    ("mount", "mnt_parent"),
    ("mount", "mnt_mountpoint"),
)


class Btf:
    """The types in `data`. Raises ValueError if that is no BTF."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEADER.size:
            raise ValueError("no BTF")
        magic, _version, _flags, header, types, types_bytes, strings, _ = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("no BTF")
        self._data = data
        self._strings: int = header + strings
        self._types = list(_positions(data, header + types, types_bytes))

    def offsets(self, structures: set[str]) -> dict[tuple[str, str], int]:
        """Where each field of these structures is, in bytes from the beginning of the structure."""
        found: dict[tuple[str, str], int] = {}
        names = {self._offset_of(name): name for name in structures}
        for position in self._types:
            name, info, _size = _TYPE.unpack_from(self._data, position)
            if info >> 24 & 0x1F == _STRUCT and name in names:
                found |= {(names[name], field): at for field, at in self._fields(position, 0)}
        return found

    def _offset_of(self, name: str) -> int:
        return self._data.find(b"\0" + name.encode() + b"\0", self._strings) + 1 - self._strings

    def _fields(self, position: int, base: int) -> Iterator[tuple[str, int]]:
        """Also those of structures without a name inside it."""
        _name, info, _size = _TYPE.unpack_from(self._data, position)
        for index in range(info & 0xFFFF):
            name, type_, at = _MEMBER.unpack_from(self._data, position + _TYPE.size + index * _MEMBER.size)
            # With the flag, the upper byte is the width of a bit field.
            at = base + (at & 0xFFFFFF if info >> 31 else at) // 8
            if name:
                start = self._strings + name
                yield self._data[start : self._data.index(b"\0", start)].decode(errors="replace"), at
            else:
                inner = self._types[type_ - 1]
                if _TYPE.unpack_from(self._data, inner)[1] >> 24 & 0x1F in (_STRUCT, _UNION):
                    yield from self._fields(inner, at)


def _positions(data: bytes, start: int, size: int) -> Iterator[int]:
    position = start
    while position < start + size:
        yield position
        (info,) = struct.unpack_from("=I", data, position + 4)
        kind = info >> 24 & 0x1F
        position += _TYPE.size + _TRAILER.get(kind, 0) + _ELEMENTS.get(kind, 0) * (info & 0xFFFF)


@functools.cache
def layout_flags(path: Path = _BTF) -> list[str]:
    """Compiler flags with the places of all fields; none if the kernel does not say where one is."""
    try:
        offsets = Btf(path.read_bytes()).offsets({structure for structure, _field in _FIELDS})
    except (OSError, ValueError):
        return []
    if any(field not in offsets for field in _FIELDS):
        return []
    return [f"-DAT_{s.upper()}_{f.upper()}={offsets[s, f]}" for s, f in _FIELDS]
