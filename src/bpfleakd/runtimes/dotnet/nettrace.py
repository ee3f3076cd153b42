"""Reads streams in the nettrace format, versions 4 and 5: turns bytes into events.

https://github.com/microsoft/perfview/blob/main/src/TraceEvent/EventPipe/NetTraceFormat_v5.md

Rules:
- The process that sends the bytes is not trusted: every length is checked, blocks and tables have limits, and
  only `BadNettrace` is raised.
- A stream may be fed in pieces of any size. Blocks of unknown kinds are skipped.
- The id of a stack is valid until the next sequence point.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

BLOCK_LIMIT_BYTES = 16 << 20
_METADATA_MAX = 10_000
_STACKS_MAX = 200_000
_NAME_LIMIT_BYTES = 2_048

_PREFIX = b"Nettrace" + struct.pack("<i", 20) + b"!FastSerialization.1"
_NULL, _BEGIN, _END = 1, 5, 6
_TRACE_BYTES = 48
_IS_COMPRESSED = 1
_EVENT_BLOCKS = (b"EventBlock", b"MetadataBlock")
_RAW_HEADER = struct.Struct("<iIiqqiiq16s16si")


class BadNettrace(ValueError):
    """The stream does not follow the format."""


class Event(Struct, frozen=True):
    """One event. `time_ns` is CLOCK_MONOTONIC on Linux; `stack` is innermost first, () if there is none."""

    provider: str
    number: int
    version: int
    time_ns: int
    stack: tuple[int, ...]
    payload: bytes


class _Blob(Struct, frozen=True):
    metadata_id: int
    stack_id: int
    time_ns: int
    payload: bytes


class _Short(Exception):
    """More bytes are needed."""


class NettraceReader:
    """Reads one stream.

    `is_ended`: the end was read. `lost_stacks` is the number of events with an unknown stack.
    """

    def __init__(self) -> None:
        self.is_ended = False
        self.lost_stacks = 0
        self._pending = b""
        self._position = 0
        self._has_begun = False
        self._metadata: dict[int, tuple[str, int, int]] = {}
        self._stacks: dict[int, tuple[int, ...]] = {}

    def feed(self, data: bytes) -> Iterator[Event]:
        """Add bytes and yield the events that are now complete. Raises BadNettrace."""
        buffer = self._pending + data
        at = 0
        try:
            if not self._has_begun:
                at = self._begin(buffer)
            while not self.is_ended:
                name, payload, after = self._object(buffer, at)
                yield from self._take(name, payload)
                at = after
        except _Short:
            pass
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise BadNettrace(f"a block is cut: {error}") from error
        self._pending = buffer[at:]
        self._position += at
        if len(self._pending) > BLOCK_LIMIT_BYTES + 4096:
            raise BadNettrace("a block is too long")

    def _begin(self, buffer: bytes) -> int:
        if not _PREFIX.startswith(buffer[: len(_PREFIX)]):
            raise BadNettrace("it does not begin as a nettrace stream")
        if len(buffer) < len(_PREFIX):
            raise _Short
        self._has_begun = True
        return len(_PREFIX)

    def _object(self, buffer: bytes, at: int) -> tuple[bytes, bytes, int]:
        """Name, payload and end of the object at a position."""
        if len(buffer) <= at:
            raise _Short
        if buffer[at] == _NULL:
            self.is_ended = True
            return b"", b"", at + 1
        if len(buffer) < at + 15:
            raise _Short
        if buffer[at : at + 3] != bytes((_BEGIN, _BEGIN, _NULL)):
            raise BadNettrace("an object begins with other tags")
        (name_bytes,) = struct.unpack_from("<i", buffer, at + 11)
        if not 0 < name_bytes <= 64:
            raise BadNettrace("an object has no name")
        body = at + 15 + name_bytes + 1
        if len(buffer) < body + 4:
            raise _Short
        name = buffer[at + 15 : body - 1]
        start, size = (body, _TRACE_BYTES) if name == b"Trace" else self._extent(buffer, body)
        end = start + size
        if len(buffer) <= end:
            raise _Short
        if buffer[body - 1] != _END or buffer[end] != _END:
            raise BadNettrace("an object ends with another tag")
        return name, buffer[start:end], end + 1

    def _extent(self, buffer: bytes, body: int) -> tuple[int, int]:
        (size,) = struct.unpack_from("<i", buffer, body)
        if not 0 <= size <= BLOCK_LIMIT_BYTES:
            raise BadNettrace(f"a block of {size} bytes")
        start = body + 4
        # Aligned as in the file, of which `buffer` begins at `_position`.
        return start + -(self._position + start) % 4, size

    def _take(self, name: bytes, payload: bytes) -> Iterator[Event]:
        if name == b"StackBlock":
            self._take_stacks(payload)
        elif name == b"SPBlock":
            self._stacks.clear()
        elif name == b"MetadataBlock":
            for blob in _blobs(payload):
                self._take_metadata(blob.payload)
        elif name == b"EventBlock":
            for blob in _blobs(payload):
                kind = self._metadata.get(blob.metadata_id)
                if kind is not None:
                    stack = self._stacks.get(blob.stack_id, ())
                    self.lost_stacks += (
                        bool(blob.stack_id) and not stack and blob.stack_id not in self._stacks
                    )
                    yield Event(*kind, blob.time_ns, stack, blob.payload)

    def _take_metadata(self, payload: bytes) -> None:
        (metadata_id,) = struct.unpack_from("<i", payload)
        provider, at = read_text(payload, 4)
        (number,) = struct.unpack_from("<i", payload, at)
        _name, at = read_text(payload, at + 4)
        _keywords, version, _level = struct.unpack_from("<qii", payload, at)
        if len(self._metadata) < _METADATA_MAX:
            self._metadata[metadata_id] = provider, number, version

    def _take_stacks(self, payload: bytes) -> None:
        first, count = struct.unpack_from("<ii", payload)
        at = 8
        if not 0 <= count <= len(payload) // 4:
            raise BadNettrace(f"a block of {count} stacks")
        for stack_id in range(first, first + count):
            (size,) = struct.unpack_from("<i", payload, at)
            if not 0 <= size <= len(payload) - at - 4:
                raise BadNettrace(f"a stack of {size} bytes")
            if len(self._stacks) < _STACKS_MAX:
                self._stacks[stack_id] = struct.unpack_from(f"<{size // 8}Q", payload, at + 4)
            at += 4 + size


def read_text(payload: bytes, at: int) -> tuple[str, int]:
    """A UTF-16 text that ends with a zero, and its end. Raises BadNettrace without an end."""
    end = payload.find(b"\0\0", at)
    while end >= 0 and (end - at) % 2:
        end = payload.find(b"\0\0", end + 1)
    if end < 0:
        raise BadNettrace("a text has no end")
    return payload[at : min(end, at + 2 * _NAME_LIMIT_BYTES)].decode("utf-16-le", "replace"), end + 2


def _blobs(payload: bytes) -> Iterator[_Blob]:
    header_bytes, flags = struct.unpack_from("<hh", payload)
    if not 4 <= header_bytes <= len(payload):
        raise BadNettrace(f"a block header of {header_bytes} bytes")
    read = _compressed if flags & _IS_COMPRESSED else _uncompressed
    return read(payload, header_bytes)


def _uncompressed(data: bytes, at: int) -> Iterator[_Blob]:
    while at < len(data):
        size, metadata_id, _seq, _tid, _capture, _cpu, stack_id, time_ns, _a, _r, payload_bytes = (
            _RAW_HEADER.unpack_from(data, at)
        )
        start = at + _RAW_HEADER.size
        if payload_bytes < 0 or start + payload_bytes > len(data) or size < 0:
            raise BadNettrace("an event is longer than its block")
        yield _Blob(metadata_id & 0x7FFFFFFF, stack_id, time_ns, data[start : start + payload_bytes])
        at = start + payload_bytes
        at += -at % 4


def _compressed(data: bytes, at: int) -> Iterator[_Blob]:
    metadata_id = stack_id = time_ns = payload_bytes = 0
    size = len(data)
    while at < size:
        flags = data[at]
        at += 1
        if flags & 1:
            metadata_id, at = _varint(data, at)
        if flags & 2:
            for _sequence_thread_processor in range(3):
                _number, at = _varint(data, at)
        if flags & 4:
            _thread, at = _varint(data, at)
        if flags & 8:
            stack_id, at = _varint(data, at)
        passed_ns, at = _varint(data, at)
        # An event may be older than the one before.
        time_ns = (time_ns + passed_ns) & 0xFFFF_FFFF_FFFF_FFFF
        # Activity and related activity.
        at += 16 * (bool(flags & 16) + bool(flags & 32))
        if flags & 128:
            payload_bytes, at = _varint(data, at)
        if at + payload_bytes > size:
            raise BadNettrace("an event is longer than its block")
        yield _Blob(metadata_id & 0x7FFFFFFF, stack_id, time_ns, data[at : at + payload_bytes])
        at += payload_bytes


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    number = shift = 0
    for place in range(at, at + 10):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, place + 1
        shift += 7
    raise BadNettrace("a number has no end")
