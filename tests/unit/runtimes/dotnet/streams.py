"""Writes nettrace streams and the runtime's events, after the public format documents."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

RUNTIME = "Microsoft-Windows-DotNETRuntime"
RUNDOWN = "Microsoft-Windows-DotNETRuntimeRundown"


@dataclass(frozen=True)
class WrittenEvent:
    provider: str
    number: int
    payload: bytes
    version: int = 1
    time_ns: int = 0
    stack: tuple[int, ...] = ()


class StreamWriter:
    """A stream as the runtime writes it: metadata before the events of their kind, stacks before events."""

    def __init__(self, *, compressed: bool = True) -> None:
        self._compressed = compressed
        self._metadata: dict[tuple[str, int, int], int] = {}
        self._stacks = 0
        self.data = b"Nettrace" + struct.pack("<i", 20) + b"!FastSerialization.1"
        self._object("Trace", 4, bytes(16) + struct.pack("<qqiiii", 0, 1_000_000_000, 8, 1, 2, 0))

    def events(self, events: Sequence[WrittenEvent], *, point_after_stacks: bool = False) -> StreamWriter:
        """A block of events, preceded by what they refer to."""
        new = {(e.provider, e.number, e.version) for e in events} - self._metadata.keys()
        if new:
            self._block("MetadataBlock", [(0, 0, 0, self._described(kind)) for kind in sorted(new)])
        first = self._stacks + 1
        stacks = [event.stack for event in events if event.stack]
        if stacks:
            body = b"".join(struct.pack(f"<i{len(s)}Q", 8 * len(s), *s) for s in stacks)
            self._sized("StackBlock", struct.pack("<ii", first, len(stacks)) + body)
            self._stacks += len(stacks)
        if point_after_stacks:
            self.sequence_point()
        ids = iter(range(first, first + len(stacks)))
        self._block(
            "EventBlock",
            [
                (
                    self._metadata[e.provider, e.number, e.version],
                    next(ids) if e.stack else 0,
                    e.time_ns,
                    e.payload,
                )
                for e in events
            ],
        )
        return self

    def sequence_point(self) -> StreamWriter:
        """From here on, stacks from before are not referred to."""
        self._sized("SPBlock", struct.pack("<qi", 0, 0))
        return self

    def unknown_block(self) -> StreamWriter:
        """A kind of block that a later version may have."""
        self._sized("NewBlock", b"whatever")
        return self

    def end(self) -> bytes:
        """The whole stream."""
        return self.data + b"\x01"

    def _described(self, kind: tuple[str, int, int]) -> bytes:
        number = self._metadata[kind] = len(self._metadata) + 1
        provider, event, version = kind
        head = struct.pack("<i", number) + text(provider) + struct.pack("<i", event) + text("")
        # No fields, then a tag of version 5.
        return head + struct.pack("<qiii", 0, version, 4, 0) + struct.pack("<ibb", 1, 1, 0)

    def _block(self, name: str, blobs: Sequence[tuple[int, int, int, bytes]]) -> None:
        header = struct.pack("<hhqq", 20, int(self._compressed), 0, 0)
        body = self._compressed_blobs(blobs) if self._compressed else self._raw_blobs(blobs)
        self._sized(name, header + body)

    def _compressed_blobs(self, blobs: Sequence[tuple[int, int, int, bytes]]) -> bytes:
        out = b""
        last = (0, 0, 0, 0)
        for metadata, stack, time_ns, payload in blobs:
            flags, fields = 0, b""
            if metadata != last[0]:
                flags, fields = flags | 1, fields + _varint(metadata)
            if metadata:
                # Sequence number, thread, processor; the thread that the event is about.
                flags, fields = flags | 2 | 4, fields + _varint(1) + _varint(0x7F00_0000_1234) + _varint(1)
                fields += _varint(0x7F00_0000_1234)
            if stack != last[1]:
                flags, fields = flags | 8, fields + _varint(stack)
            fields += _varint((time_ns - last[2]) % (1 << 64))
            flags, fields = flags | 16 | 32, fields + bytes(32)
            if len(payload) != last[3]:
                flags, fields = flags | 128, fields + _varint(len(payload))
            out += bytes([flags]) + fields + payload
            last = metadata, stack, time_ns, len(payload)
        return out

    def _raw_blobs(self, blobs: Sequence[tuple[int, int, int, bytes]]) -> bytes:
        out = b""
        for metadata, stack, time_ns, payload in blobs:
            head = struct.pack("<iiqqiiq", metadata, 1, 1, 1, 0, stack, time_ns) + bytes(32)
            out += struct.pack("<i", len(head) + 4 + len(payload)) + head
            out += struct.pack("<i", len(payload)) + payload
            out += bytes(-len(out) % 4)
        return out

    def _sized(self, name: str, body: bytes) -> None:
        at = len(self.data) + 15 + len(name) + 1 + 4
        self._object(name, 2, struct.pack("<i", len(body)) + bytes(-at % 4) + body)

    def _object(self, name: str, version: int, payload: bytes) -> None:
        head = b"\x05\x05\x01" + struct.pack("<iii", version, version, len(name)) + name.encode() + b"\x06"
        self.data += head + payload + b"\x06"


def text(value: str) -> bytes:
    """As events have it: UTF-16 with a zero."""
    return (value + "\0").encode("utf-16-le")


def method(
    namespace: str,
    name: str,
    start: int,
    size: int,
    *,
    method_id: int = 1,
    token: int = 0x06000001,
    module_id: int = 7,
    is_jitted: bool = True,
) -> WrittenEvent:
    """MethodDCEndVerbose, with the fields of version 2 behind."""
    payload = struct.pack("<QQQIII", method_id, module_id, start, size, token, 8 if is_jitted else 0)
    payload += text(namespace) + text(name) + text("void  ()") + struct.pack("<HQ", 8, 0)
    return WrittenEvent(RUNDOWN, 144, payload, 2)


def il_map(method_id: int, pairs: Sequence[tuple[int, int]]) -> WrittenEvent:
    """MethodDCEndILToNativeMap: pairs (IL offset, native offset)."""
    numbers = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    payload = struct.pack(f"<QQBH{len(numbers)}I", method_id, 0, 0, len(pairs), *numbers)
    return WrittenEvent(RUNDOWN, 150, payload, 0)


def module(module_id: int, path: str) -> WrittenEvent:
    """ModuleDCEnd."""
    payload = struct.pack("<QQII", module_id, 1, 0, 0) + text(path) + text("") + struct.pack("<H", 8)
    return WrittenEvent(RUNDOWN, 154, payload, 2)


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])
