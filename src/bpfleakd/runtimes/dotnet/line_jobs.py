"""The helpers' jobs for assemblies and portable PDBs of .NET processes: lines for native code of methods.

The functions in JOBS run in an unprivileged process (sandbox/zygote.py); the structs are their answers.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated

import msgspec

from bpfleakd.runtimes.dotnet.assembly import debug_directory
from bpfleakd.runtimes.dotnet.portable_pdb import BadDebugInformation, PortablePdb, SequencePoint
from bpfleakd.sandbox.orders import Answers

JOBS = ("lines",)
LINES_JOB = f"{__name__}:lines"

POINT = struct.Struct("<III")
"""From a native offset on, a line of a file: offset, index in `files`, line."""

_FILES_MAX = 65_536
_CONTENT_MAX_BYTES = 256 << 20
FilePath = Annotated[str, msgspec.Meta(max_length=4_096)]
_PAIR = struct.Struct("<II")
_FIRST_ONLY = _PAIR.pack(0, 0)


class MethodLines(msgspec.Struct, frozen=True, tag=True):
    """The packed points of the requested methods, in order; paths of files, by index."""

    files: Annotated[tuple[FilePath, ...], msgspec.Meta(max_length=_FILES_MAX)]
    points: tuple[bytes, ...]


def prepare() -> None:
    """Do nothing: nothing needs to be loaded."""


def lines(files: Sequence[int], arguments: object, answer: Answers) -> None:
    """Answer the lines of methods of an assembly; nothing if it has no portable PDB.

    `files` are the assembly, and the separate PDB, if any. `arguments` are pairs: the token of a method, and
    its packed pairs of native and IL offset; without these, its first line is used for all. Raises
    BadDebugInformation.
    """
    pdb = _pdb_of(files)
    if pdb is None:
        return
    asked = msgspec.convert(arguments, list[tuple[int, bytes]])
    places: dict[int, int] = {}
    found = tuple(_packed(pdb.points(token), il_map or _FIRST_ONLY, places) for token, il_map in asked)
    answer(MethodLines(tuple(pdb.document(row) for row in places), found))


def _pdb_of(files: Sequence[int]) -> PortablePdb | None:
    directory = debug_directory(_content(files[0]))
    if directory.embedded is not None:
        return PortablePdb(directory.embedded)
    if directory.pdb_id is None or len(files) < 2:
        return None
    pdb = PortablePdb(_content(files[1]))
    if pdb.id != directory.pdb_id:
        raise BadDebugInformation("the PDB beside it belongs to another build")
    return pdb


def _packed(points: Sequence[SequencePoint], il_map: bytes, places: dict[int, int]) -> bytes:
    offsets = [point.il_offset for point in points]
    packed = b""
    last = None
    for native, il_offset in _PAIR.iter_unpack(il_map):
        if not points:
            break
        # Code before the first line belongs to it.
        point = points[max(0, bisect_right(offsets, il_offset) - 1)]
        if (point.document, point.line) != last and len(places) < _FILES_MAX:
            place = places.setdefault(point.document, len(places))
            packed += POINT.pack(native, place, point.line)
            last = point.document, point.line
    return packed


def _content(file: int) -> bytes:
    # Unread pages are not loaded; a file that shrinks meanwhile ends this process.
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapped:
        return mapped[:_CONTENT_MAX_BYTES]
