"""Strings of V8's heap: slices, concatenations, and some that are made to be read forever."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.v8.heap_objects import HeapObjects

# Like those of Node.js 18, in so far as they matter.
CONSTANTS = SimpleNamespace(
    map_type=8,
    not_string_mask=0xFF80,
    string_length=12,
    encoding_mask=8,
    one_byte_tag=8,
    representation_mask=7,
    sequential_tag=0,
    cons_tag=1,
    external_tag=2,
    sliced_tag=3,
    thin_tag=5,
    one_byte_chars=16,
    two_byte_chars=16,
    cons_first=16,
    cons_second=24,
    sliced_parent=16,
    sliced_offset=24,
    thin_actual=16,
    external_resource=16,
)
ONE_BYTE = 8


class Heap:
    """Texts in the memory of this very process; methods return tagged pointers."""

    def __init__(self) -> None:
        self._kept: list[ctypes.Array[ctypes.c_char]] = []

    def put(self, data: bytes) -> int:
        self._kept.append(ctypes.create_string_buffer(data, len(data)))
        address = ctypes.addressof(self._kept[-1])
        assert address % 4 == 0
        return address + 1

    def text(self, type_: int, length: int, *words: int, characters: bytes = b"") -> int:
        map_ = self.put(bytes(8) + struct.pack("<Q", type_))
        return self.put(struct.pack(f"<QII{len(words)}Q", map_, 0, length & 0xFFFFFFFF, *words) + characters)

    def flat(self, text: str) -> int:
        return self.text(ONE_BYTE, len(text), characters=text.encode())

    def wide(self, text: str) -> int:
        return self.text(0, len(text), characters=text.encode("utf-16-le"))

    def joined(self, length: int, first: int, second: int) -> int:
        return self.text(ONE_BYTE | 1, length, first, second)

    def sliced(self, length: int, parent: int, offset: int) -> int:
        return self.text(ONE_BYTE | 3, length, parent, offset << 32)


@pytest.fixture
def heap() -> Heap:
    return Heap()


@pytest.fixture
def objects() -> Iterator[HeapObjects]:
    with RemoteMemory(os.getpid()) as memory:
        yield HeapObjects(memory, CONSTANTS)  # type: ignore[arg-type]


def text_of(objects: HeapObjects, pointer: int, limit: int) -> str:
    """The text as it is now: pages are remembered for a moment."""
    objects._memory.renew()
    return objects.text(pointer, limit)


def test_texts_of_all_kinds(heap: Heap, objects: HeapObjects) -> None:
    """Whatever its representation, a string reads as in the program."""
    leak, shop = heap.flat("leak"), heap.flat("shop")
    both = heap.joined(8, leak, shop)
    assert text_of(objects, both, 100) == "leakshop"
    assert text_of(objects, both, 5) == "leaks"
    assert text_of(objects, heap.sliced(3, leak, 1), 100) == "eak"
    assert [text_of(objects, heap.sliced(4, both, at), 3) for at in (0, 2, 4)] == ["lea", "aks", "sho"]
    assert text_of(objects, heap.text(ONE_BYTE | 5, 4, leak), 100) == "leak"
    assert text_of(objects, heap.joined(6, leak, heap.wide("äö")), 100) == "leakäö"
    outside = heap.put(b"external")
    external = heap.text(ONE_BYTE | 2, 8, 0, outside - 1)
    assert text_of(objects, heap.sliced(4, external, 2), 100) == "tern"


def test_what_is_in_front_of_a_slice_is_not_read(heap: Heap, objects: HeapObjects) -> None:
    """A name cut out of a text at its sixty millionth character: only the name is read."""
    long = heap.text(ONE_BYTE, 60_000_004, characters=bytes(60_000_000) + b"name")
    read: list[int] = []
    memory = objects._memory
    objects._memory = SimpleNamespace(  # type: ignore[assignment]
        renew=memory.renew, read=lambda address, size: read.append(size) or memory.read(address, size)
    )
    assert text_of(objects, heap.sliced(4, long, 60_000_000), 256) == "name"
    assert sum(read) < 200


def test_texts_of_too_many_pieces(heap: Heap, objects: HeapObjects) -> None:
    """Each is twice the one before: there are 256 of the innermost."""
    text = heap.flat("a")
    for level in range(8):
        text = heap.joined(2 << level, text, text)
    with pytest.raises(ValueError, match="too many pieces"):
        text_of(objects, text, 256)
    endless = heap.flat("")
    for _ in range(20):
        endless = heap.sliced(9, endless, 0)
    with pytest.raises(ValueError, match="too many pieces"):
        text_of(objects, endless, 100)
