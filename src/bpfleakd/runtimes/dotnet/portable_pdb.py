"""Portable PDBs: the file and line of each IL instruction of a method.

https://github.com/dotnet/runtime/blob/main/docs/design/specs/PortablePdb-Metadata.md ECMA-335 II.24.2
(metadata root and streams) and II.23.2 (compressed numbers).

Rules:
- The bytes are the target's: every length is checked, and `BadDebugInformation` is all that is raised.
- Of a point that is hidden, the line of the one before counts, as in .NET's own stack traces.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import Struct

ID_BYTES = 20
_SIGNATURE = b"BSJB"
_STREAMS_MAX = 16
_NAME_PARTS_MAX = 256
_NAME_MAX_BYTES = 2_048
_POINTS_MAX = 200_000
_DOCUMENT, _METHOD_DEBUG_INFORMATION = 0x30, 0x31
_METHOD_TOKEN = 0x0600_0000
_ROW_MASK = 0x00FF_FFFF
# The heaps with indices of 4 bytes.
_LARGE_GUIDS, _LARGE_BLOBS = 0x02, 0x04


T = TypeVar("T")


class BadDebugInformation(ValueError):
    """The file does not follow the format."""


class SequencePoint(Struct, frozen=True):
    """From an IL offset on, this line of a document (its row, from 1)."""

    il_offset: int
    document: int
    line: int


class PortablePdb:
    """One file. `id` must be that of the assembly. Raises BadDebugInformation."""

    def __init__(self, data: bytes) -> None:
        self._streams = _guarded(lambda: _streams(data))
        self._blobs = self._streams.get(b"#Blob", b"")
        self.id = self._streams.get(b"#Pdb", b"")[:ID_BYTES]
        self._documents, self._methods = _guarded(self._tables)

    def document(self, row: int) -> str:
        """The path of a document. Raises BadDebugInformation."""
        return _guarded(lambda: self._document_name(row))

    def points(self, token: int) -> list[SequencePoint]:
        """The points of a method, by IL offset; empty if it has none. Raises BadDebugInformation."""
        row = token & _ROW_MASK
        if token & ~_ROW_MASK != _METHOD_TOKEN or not 0 < row <= len(self._methods):
            return []
        document, blob = self._methods[row - 1]
        return _guarded(lambda: list(self._points(document, self._blob(blob))))

    def _tables(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The name of each document, and for each method its document and the blob of its points."""
        data = self._streams.get(b"#~", b"")
        (large,) = struct.unpack_from("<B", data, 6)
        (present,) = struct.unpack_from("<Q", data, 8)
        numbers = [number for number in range(64) if present >> number & 1]
        rows = dict(zip(numbers, struct.unpack_from(f"<{len(numbers)}I", data, 24), strict=True))
        at = 24 + 4 * len(numbers)
        if any(number < _DOCUMENT for number in numbers):
            raise BadDebugInformation("it has tables of an assembly")
        blob = "I" if large & _LARGE_BLOBS else "H"
        guid = "I" if large & _LARGE_GUIDS else "H"
        # Name, hash algorithm, hash, language.
        documents = struct.Struct(f"<{blob}{guid}{blob}{guid}")
        document_row = "I" if rows.get(_DOCUMENT, 0) > 0xFFFF else "H"
        methods = struct.Struct(f"<{document_row}{blob}")
        middle = at + documents.size * rows.get(_DOCUMENT, 0)
        end = middle + methods.size * rows.get(_METHOD_DEBUG_INFORMATION, 0)
        if end > len(data):
            raise BadDebugInformation("its tables are cut")
        names = [row[0] for row in documents.iter_unpack(data[at:middle])]
        return names, list(methods.iter_unpack(data[middle:end]))

    def _document_name(self, row: int) -> str:
        """The name consists of parts with a separator, each a separate blob."""
        if not 0 < row <= len(self._documents):
            raise BadDebugInformation(f"it has no document {row}")
        name = self._blob(self._documents[row - 1])
        separator, at = name[:1].strip(b"\0"), 1
        parts: list[bytes] = []
        while at < len(name) and len(parts) < _NAME_PARTS_MAX:
            handle, at = _unsigned(name, at)
            parts.append(self._blob(handle) if handle else b"")
        return separator.join(parts)[-_NAME_MAX_BYTES:].decode("utf-8", "replace")

    def _blob(self, at: int) -> bytes:
        size, start = _unsigned(self._blobs, at)
        if start + size > len(self._blobs):
            raise BadDebugInformation("a blob is cut")
        return self._blobs[start : start + size]

    def _points(self, document: int, blob: bytes) -> Iterator[SequencePoint]:
        if not blob:
            return
        _signature, at = _unsigned(blob, 0)
        if not document:
            document, at = _unsigned(blob, at)
        il_offset = line = 0
        is_first = True
        for _number in range(_POINTS_MAX):
            if at >= len(blob):
                return
            passed, at = _unsigned(blob, at)
            if not passed and not is_first:
                document, at = _unsigned(blob, at)
                continue
            il_offset += passed
            is_first = False
            lines, at = _unsigned(blob, at)
            columns, at = _signed(blob, at) if lines else _unsigned(blob, at)
            if not lines and not columns:
                continue
            if not line:
                line, at = _unsigned(blob, at)
                _column, at = _unsigned(blob, at)
            else:
                difference, at = _signed(blob, at)
                line += difference
                _column, at = _signed(blob, at)
            if not 0 < line <= 0xFFFF_FFFF or il_offset > 0xFFFF_FFFF:
                raise BadDebugInformation("a point that no file has")
            yield SequencePoint(il_offset, document, line)


def _streams(data: bytes) -> dict[bytes, bytes]:
    if data[:4] != _SIGNATURE:
        raise BadDebugInformation("it does not begin as one")
    (version_bytes,) = struct.unpack_from("<I", data, 12)
    (count,) = struct.unpack_from("<H", data, 16 + version_bytes + 2)
    at = 16 + version_bytes + 4
    found: dict[bytes, bytes] = {}
    for _number in range(min(count, _STREAMS_MAX)):
        start, size = struct.unpack_from("<II", data, at)
        end = data.index(b"\0", at + 8, at + 8 + 32)
        found[data[at + 8 : end]] = data[start : start + size]
        # The name is padded to 4 bytes.
        at += 8 + (end - at - 8) // 4 * 4 + 4
    return found


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """A compressed number, and its end (II.23.2)."""
    first = data[at]
    if not first & 0x80:
        return first, at + 1
    if not first & 0x40:
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    if not first & 0x20:
        return (first & 0x1F) << 24 | int.from_bytes(data[at + 1 : at + 4], "big"), at + 4
    raise BadDebugInformation("a number of unknown length")


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """The same with a sign in the lowest bit."""
    number, end = _unsigned(data, at)
    bits = {1: 6, 2: 13, 4: 28}[end - at]
    return (number >> 1) - ((1 << bits) if number & 1 else 0), end


def _guarded(read: Callable[[], T]) -> T:
    try:
        return read()
    except BadDebugInformation:
        raise
    except (struct.error, IndexError, ValueError) as error:
        raise BadDebugInformation(f"it is cut: {error}") from error
