"""The record that V8 keeps of its collections: where a build has it, and what of it is believed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpfleakd.elf.named_symbols import NamedSymbol
from bpfleakd.runtimes.v8 import gc_tracer
from bpfleakd.runtimes.v8.gc_tracer import Ring, TracerLayout, find_tracer, read_layout
from tests.unit.runtimes.v8.heaps import HEAP, LAYOUT, TRACER, Heap

MIB = 1 << 20


class Image:
    """A file whose functions have this code, with ElfImage's interface for `read_layout`."""

    def __init__(self, code: dict[str, bytes]) -> None:
        self.code = {0x1000 * (1 + place): (name, text) for place, (name, text) in enumerate(code.items())}

    def read(self, vaddr: int, size_bytes: int) -> bytes:
        return self.code[vaddr][1][:size_bytes]


def layout_of(monkeypatch: pytest.MonkeyPatch, *code: bytes) -> TracerLayout | None:
    names = (*gc_tracer._RINGS, gc_tracer._STOP)
    image = Image(dict(zip(names, code, strict=False)))
    symbols = {name: NamedSymbol(vaddr, 64) for vaddr, (name, _text) in image.code.items()}
    monkeypatch.setattr(gc_tracer, "find_symbols", lambda _image, _names: symbols)
    return read_layout(image)  # type: ignore[arg-type]


# From upstream's Node.js 20: mov 0x1034(%rdi),%r8d; mov 0x1030(%rdi),%eax, and 0xf8c, 0xf88.
MARK_COMPACTS = bytes.fromhex("448b87341000008b87301000004401c08d50ff83e80b")
INCREMENTAL = bytes.fromhex("448b878c0f00008b87880f00004401c08d50ff83e80b")
# push %rbp; mov %rsp,%rbp; mov %rdi,%rbx; mov (%rdi),%rdi; call; lea -0x30(%rbp),%rdi; mov %rax,0x40(%rbx)
STOP = bytes.fromhex("554889e54889fb488b3fe8d8860200488d7dd0488943404c8b03")
# The same of Debian's libnode 18: add $0xf58,%rdi; jmp; and the store is to 0x40(%r13).
PASSED_ON = bytes.fromhex("4881c7580f0000e914789200"), bytes.fromhex("4881c7b00e0000e904789200")
STOP_DEBIAN = bytes.fromhex("41554989fd488b3fe8e01e8cff4c89f749894540498b4500")


def test_where_a_build_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first instructions of functions that use it."""
    assert layout_of(monkeypatch, MARK_COMPACTS, INCREMENTAL, STOP) == TracerLayout((0xF90, 0xEE8), 0x40)
    assert layout_of(monkeypatch, *PASSED_ON, STOP_DEBIAN) == TracerLayout((0xF58, 0xEB0), 0x40)


@pytest.mark.parametrize(
    "code",
    [
        (MARK_COMPACTS, INCREMENTAL),
        (MARK_COMPACTS, MARK_COMPACTS, STOP),
        (MARK_COMPACTS, b"\xc3" * 64, STOP),
        (MARK_COMPACTS, INCREMENTAL, b"\x90" * 64),
        # bytes in place of two numbers, as in V8 12.4: movzbl 0x10a0(%rdi),%edx
        (bytes.fromhex("0fb697a0100000440fb687a1100000"), INCREMENTAL, STOP),
    ],
)
def test_one_that_does_not_say(monkeypatch: pytest.MonkeyPatch, code: tuple[bytes, ...]) -> None:
    """Unknown code is none, and no guess is made."""
    assert layout_of(monkeypatch, *code) is None


def test_the_record_is_found_by_what_leads_back(tmp_path: Path) -> None:
    """Other objects of the heap begin with its address, too; their figures are none."""
    heap = Heap(tmp_path)
    heap.collect(5 * MIB, full=True)
    heap.collect(6 * MIB, full=False)

    with heap.memory() as memory:
        tracer = find_tracer(memory, HEAP, 8 * MIB, LAYOUT)
        assert tracer is not None
        reading = tracer.read()
    assert [ring.sizes_bytes for ring in reading.rings] == [(5 * MIB,), ()]
    assert reading.end_bytes == 6 * MIB


def test_a_heap_that_was_not_collected_yet(tmp_path: Path) -> None:
    """There is nothing to be known by, and nothing to be said."""
    heap = Heap(tmp_path)
    with heap.memory() as memory:
        assert find_tracer(memory, HEAP, 8 * MIB, LAYOUT) is None


@pytest.mark.parametrize(
    ("place", "data"),
    [
        (0, struct.pack("<Q", HEAP + 8)),
        (8, struct.pack("<i", 9)),
        (12, struct.pack("<i", -1)),
        (32, struct.pack("<d", float("nan"))),
        # a pointer
        (32, struct.pack("<Q", 0x7F3A_1234_5678)),
        (40, struct.pack("<Q", 0x1B2C_3D40)),
        # a collection that never began, and is not under way
        (32, struct.pack("<d", 0.0)),
        (LAYOUT.end_size, struct.pack("<Q", 1 << 50)),
        # more than its pages have
        (LAYOUT.end_size, struct.pack("<Q", 1 << 30)),
        (LAYOUT.rings[0], struct.pack("<Q", 0)),
        (LAYOUT.rings[0] + 8, struct.pack("<d", -1.0)),
        (LAYOUT.rings[0] + 160, struct.pack("<i", 3)),
        (LAYOUT.rings[1] + 164, struct.pack("<i", 11)),
    ],
)
def test_a_record_that_is_none(tmp_path: Path, place: int, data: bytes) -> None:
    """One field that cannot be, and nothing of it is believed."""
    heap = Heap(tmp_path)
    heap.collect(5 * MIB, full=True)
    heap.write(TRACER + place, data)

    with heap.memory() as memory, pytest.raises(ValueError, match="not as expected"):
        find_tracer(memory, HEAP, 8 * MIB, LAYOUT)


def test_what_has_come_since() -> None:
    """In a ring that was filled, that has wrapped around, and that has not changed."""
    assert Ring(0, (1, 2, 3)).since(Ring(0, (1,))) == (2, 3)
    ten = tuple(range(10))
    assert Ring(2, ten).since(Ring(0, ten)) == (8, 9)
    assert Ring(1, ten).since(Ring(9, ten)) == (8, 9)
    assert Ring(1, ten).since(Ring(0, (1, 2, 3, 4, 5, 6, 7, 8))) == (7, 8, 9)
    assert Ring(4, ten).since(Ring(4, ten)) == ()
    assert Ring(0, (1,)).since(Ring(0, (1, 2))) == ()
