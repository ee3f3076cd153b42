"""The debug directory of an assembly (a PE file): its portable PDB, separate or embedded."""

from __future__ import annotations

import struct
import zlib

from msgspec import Struct

from bpfleakd.runtimes.dotnet.portable_pdb import BadDebugInformation

_PE32, _PE32_PLUS = 0x10B, 0x20B
# The offset of the data directories in the optional header, and the index of this one.
_DIRECTORIES = {_PE32: 96, _PE32_PLUS: 112}
_DEBUG = 6
_SECTION_BYTES, _SECTIONS_MAX = 40, 96
_ENTRY = struct.Struct("<IIHHIIII")
_ENTRIES_MAX = 32
_CODE_VIEW, _EMBEDDED = 2, 17
_PORTABLE = 0x504D
_PDB_MAX_BYTES = 64 << 20


class DebugDirectory(Struct, frozen=True):
    """The id that the PDB must have, None without one; and the PDB itself if it is embedded."""

    pdb_id: bytes | None
    embedded: bytes | None


def debug_directory(data: bytes) -> DebugDirectory:
    """Read it. Raises BadDebugInformation."""
    try:
        return _read(data)
    except (struct.error, zlib.error) as error:
        raise BadDebugInformation(f"the assembly is cut: {error}") from error


def _read(data: bytes) -> DebugDirectory:
    pdb_id = embedded = None
    at, size_bytes = _extent(data)
    for number in range(min(size_bytes // _ENTRY.size, _ENTRIES_MAX)):
        _flags, stamp, _major, minor, kind, size, _vaddr, offset = _ENTRY.unpack_from(
            data, at + number * _ENTRY.size
        )
        content = data[offset : offset + size]
        if kind == _CODE_VIEW and minor == _PORTABLE and content[:4] == b"RSDS":
            pdb_id = content[4:20] + struct.pack("<I", stamp)
        elif kind == _EMBEDDED and content[:4] == b"MPDB":
            (whole_bytes,) = struct.unpack_from("<I", content, 4)
            embedded = zlib.decompressobj(-zlib.MAX_WBITS).decompress(
                content[8:], max(1, min(whole_bytes, _PDB_MAX_BYTES))
            )
    return DebugDirectory(pdb_id, embedded)


def _extent(data: bytes) -> tuple[int, int]:
    """File offset and size of the directory; zeroes without one."""
    (header,) = struct.unpack_from("<I", data, 0x3C)
    signature, _machine, sections = struct.unpack_from("<4sHH", data, header)
    optional_bytes, _characteristics, magic = struct.unpack_from("<HHH", data, header + 20)
    if signature != b"PE\0\0" or magic not in _DIRECTORIES:
        raise BadDebugInformation("it is no assembly")
    optional = header + 24
    directories = optional + _DIRECTORIES[magic]
    (count,) = struct.unpack_from("<I", data, directories - 4)
    if count <= _DEBUG:
        return 0, 0
    vaddr, size_bytes = struct.unpack_from("<II", data, directories + 8 * _DEBUG)
    for number in range(min(sections, _SECTIONS_MAX)):
        start, raw_bytes, offset = struct.unpack_from(
            "<III", data, optional + optional_bytes + number * _SECTION_BYTES + 12
        )
        if start <= vaddr < start + raw_bytes:
            return offset + vaddr - start, size_bytes
    return 0, 0
