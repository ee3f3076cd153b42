"""Reads recordings of the JDK Flight Recorder: yields the events of some kinds.

A recording is a sequence of chunks. Each describes its own types (metadata), and has tables of values
(constant pools) to which events refer by number.

src/jdk.jfr/share/classes/jdk/jfr/internal/consumer/{ChunkHeader,ChunkParser,MetadataReader}.java

Rules:
- The process that writes the bytes is not trusted: every length is checked, tables have limits, and only
  `BadRecording` is raised.
- Events of other kinds are skipped, as programs may record by themselves.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

_HEADER = struct.Struct(">4sHHqqqqqqqi")
_MAGIC = b"FLR\0"
_MAJOR = 2
_COMPRESSED = 1
_METADATA, _CHECKPOINT = 0, 1
_VALUES_MAX = 2_000_000
_CHUNKS_MAX = 1_000
_DEPTH_MAX = 32
_STRING = "java.lang.String"
_WHOLE = frozenset({"long", "int", "short", "char"})


class BadRecording(ValueError):
    """The bytes do not follow the format."""


class Reference(NamedTuple):
    """A value in a constant pool."""

    type_id: int
    key: int


class _Field(NamedTuple):
    name: str
    type_id: int
    is_list: bool
    is_pooled: bool


class _Type(Struct):
    name: str
    fields: list[_Field] = msgspec.field(default_factory=list)


class _Element(Struct):
    """An element of the metadata tree."""

    name: str
    attributes: dict[str, str]
    children: list[_Element]


class _Cursor:
    """A position in bytes, and readers from there on. Past the end: IndexError or struct.error."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self.at = at
        self.end = end

    def byte(self) -> int:
        value = self._data[self.at]
        self.at += 1
        return value

    def number(self) -> int:
        """An unsigned integer of up to nine bytes; the last of nine has eight bits."""
        value = 0
        for shift in range(0, 56, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        return value | self.byte() << 56

    def count(self) -> int:
        """The number of elements of at least one byte. Raises BadRecording if there is no room for them."""
        found = self.number()
        if found > self.end - self.at:
            raise BadRecording(f"{found} values in {self.end - self.at} bytes")
        return found

    def unpack(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return value

    def text(self) -> str | int | None:
        """A string; a number is its key in the pool of strings."""
        encoding = self.byte()
        if encoding == 0:
            return None
        if encoding == 1:
            return ""
        if encoding == 2:
            return self.number()
        if encoding == 4:
            return "".join(chr(self.number() & 0xFFFF) for _ in range(self.count()))
        if encoding not in (3, 5):
            raise BadRecording(f"a string of encoding {encoding}")
        size = self.count()
        data = self._data[self.at : self.at + size]
        self.at += size
        return data.decode("utf-8" if encoding == 3 else "latin-1", "replace")


_FLOAT, _DOUBLE = struct.Struct(">f"), struct.Struct(">d")


class Resolver:
    """The values of a chunk's constant pools. Missing values are None."""

    def __init__(self) -> None:
        self._pools: dict[Reference, Any] = {}
        self._strings: int | None = None

    def __call__(self, value: Any) -> Any:
        """The value of a reference; any other value is returned unchanged."""
        return self._pools.get(value) if isinstance(value, Reference) else value

    def field(self, value: Any, *names: str) -> Any:
        """The value at the end of this path of fields, None if any part is missing."""
        for name in names:
            value = self(value)
            value = value.get(name) if isinstance(value, dict) else None
        return self(value)

    def text(self, value: Any, *names: str) -> str:
        """The same as text; "" if missing."""
        found = self.field(value, *names)
        if isinstance(found, int) and self._strings is not None:
            found = self._pools.get(Reference(self._strings, found))
        # A symbol is a structure around a text.
        if isinstance(found, dict):
            found = next((part for part in found.values() if isinstance(part, str)), "")
        return found if isinstance(found, str) else ""

    def add(self, reference: Reference, value: Any) -> None:
        if len(self._pools) >= _VALUES_MAX:
            raise BadRecording(f"more than {_VALUES_MAX:,} values")
        self._pools[reference] = value

    def set_strings(self, type_id: int | None) -> None:
        self._strings = type_id


def read_events(data: bytes, kinds: Collection[str]) -> Iterator[tuple[dict[str, Any], Resolver]]:
    """Yield the events of these kinds, each with its fields, and the resolver of its references.

    Raises BadRecording.
    """
    at = 0
    for _number in range(_CHUNKS_MAX):
        if at == len(data):
            return
        try:
            chunk = _Chunk(data, at)
            resolver = Resolver()
            found = chunk.events(kinds, resolver)
        except (IndexError, struct.error, RecursionError) as error:
            raise BadRecording(f"a chunk is cut: {error}") from error
        for event in found:
            yield event, resolver
        at = chunk.end
    raise BadRecording(f"more than {_CHUNKS_MAX} chunks")


class _Chunk:
    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        header = _HEADER.unpack_from(data, start)
        magic, major, _minor, size, _pool_at, metadata_at = header[:6]
        if magic != _MAGIC or major != _MAJOR:
            raise BadRecording("it does not begin as a recording of version 2")
        if not header[-1] & _COMPRESSED:
            raise BadRecording("its numbers are not compressed")
        if not _HEADER.size < size <= len(data) - start:
            raise BadRecording(f"a chunk of {size} bytes")
        if not _HEADER.size <= metadata_at < size:
            raise BadRecording("its metadata are elsewhere")
        self._start, self.end = start + _HEADER.size, start + size
        self._types = self._metadata(start + metadata_at)

    def events(self, kinds: Collection[str], resolver: Resolver) -> list[dict[str, Any]]:
        wanted = {type_id for type_id, one in self._types.items() if one.name in kinds}
        strings = (type_id for type_id, one in self._types.items() if one.name == _STRING)
        resolver.set_strings(next(strings, None))
        found = []
        at = self._start
        while at < self.end:
            cursor = _Cursor(self._data, at, self.end)
            size = cursor.number()
            if not 0 < size <= self.end - at:
                raise BadRecording(f"an event of {size} bytes")
            cursor.end = at + size
            kind = cursor.number()
            if kind == _CHECKPOINT:
                self._checkpoint(cursor, resolver)
            elif kind in wanted:
                found.append(self._structure(cursor, kind, 0))
            at += size
        return found

    def _metadata(self, at: int) -> dict[int, _Type]:
        cursor = _Cursor(self._data, at, self.end)
        cursor.number()
        if cursor.number() != _METADATA:
            raise BadRecording("its metadata are something else")
        for _start_duration_number in range(3):
            cursor.number()
        texts = [cursor.text() for _ in range(cursor.count())]
        names = [text if isinstance(text, str) else "" for text in texts]
        types: dict[int, _Type] = {}
        waiting = [_element(cursor, names, 0)]
        while waiting:
            element = waiting.pop()
            if element.name == "class":
                types[_whole(element.attributes.get("id"))] = _type(element)
            else:
                waiting += element.children
        return types

    def _checkpoint(self, cursor: _Cursor, resolver: Resolver) -> None:
        for _start_duration_delta in range(3):
            cursor.number()
        cursor.byte()
        for _pool in range(cursor.count()):
            type_id = cursor.number()
            for _value in range(cursor.count()):
                key = cursor.number()
                resolver.add(Reference(type_id, key), self._value(cursor, type_id, 0))

    def _structure(self, cursor: _Cursor, type_id: int, depth: int) -> dict[str, Any]:
        kind = self._types.get(type_id)
        if kind is None or depth > _DEPTH_MAX:
            raise BadRecording(f"a value of an unknown type {type_id}")
        found: dict[str, Any] = {}
        for one in kind.fields:
            if one.is_list:
                count = cursor.count()
                found[one.name] = [self._field(cursor, one, depth) for _ in range(count)]
            else:
                found[one.name] = self._field(cursor, one, depth)
        return found

    def _field(self, cursor: _Cursor, one: _Field, depth: int) -> Any:
        if one.is_pooled:
            return Reference(one.type_id, cursor.number())
        return self._value(cursor, one.type_id, depth)

    def _value(self, cursor: _Cursor, type_id: int, depth: int) -> Any:
        name = self._types[type_id].name if type_id in self._types else ""
        if name in _WHOLE:
            return cursor.number()
        if name in ("boolean", "byte"):
            return cursor.byte()
        if name == "float":
            return cursor.unpack(_FLOAT)
        if name == "double":
            return cursor.unpack(_DOUBLE)
        if name == _STRING:
            return cursor.text()
        return self._structure(cursor, type_id, depth + 1)


def _element(cursor: _Cursor, names: list[str], depth: int) -> _Element:
    if depth > _DEPTH_MAX:
        raise BadRecording("its metadata are too deep")
    name = names[cursor.number()]
    attributes = {}
    for _attribute in range(cursor.count()):
        key = names[cursor.number()]
        attributes[key] = names[cursor.number()]
    children = [_element(cursor, names, depth + 1) for _ in range(cursor.count())]
    return _Element(name, attributes, children)


def _type(element: _Element) -> _Type:
    found = _Type(element.attributes.get("name", ""))
    for child in element.children:
        if child.name == "field":
            has = child.attributes
            is_list = _whole(has.get("dimension", "0")) > 0
            is_pooled = has.get("constantPool") == "true"
            found.fields.append(_Field(has.get("name", ""), _whole(has.get("class")), is_list, is_pooled))
    return found


def _whole(text: str | None) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 19:
        raise BadRecording("a number in its metadata is invalid")
    return int(text)
