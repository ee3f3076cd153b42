"""Memory that looks like a JVM's and is made to keep its reader busy."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace

import pytest

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.code_cache import CodeCache, CodeHeap, _starts
from bpfleakd.runtimes.jvm.flags import read_flag
from bpfleakd.runtimes.jvm.java_method import MethodReader
from bpfleakd.runtimes.jvm.layout import CodeLayout, FlagLayout

CODE = CodeLayout(
    heaps=0,
    heaps_elements=0,
    heap_memory=0,
    heap_segments=0,
    log2_segment=0,
    space_low=0,
    space_high=0,
    block_bytes=16,
    length_bytes=8,
    used=8,
    name=0,
    size=8,
    frame_size=12,
    code_begin=16,
    code_end=24,
    is_relative=False,
    method=32,
    read_bytes=64,
)


def test_only_so_many_blocks_of_a_code_heap_are_looked_at() -> None:
    """A map of zeroes says that a block begins in each segment."""
    assert _starts(bytes(32 << 20), 1_000).tolist() == list(range(1_000))
    assert _starts(b"\0\1\1\0\1", 1_000).tolist() == [0, 3]
    assert _starts(b"\0", 0).tolist() == []


def test_a_code_heap_that_cannot_be_read() -> None:
    """Each block without memory takes a call, so the reading ends after some."""
    layout = SimpleNamespace(code=CODE)
    with RemoteMemory(os.getpid()) as memory:
        cache = CodeCache(os.getpid(), memory, layout)  # type: ignore[arg-type]
        # There is never memory at the end of the address space.
        end = (1 << 47) - (1 << 20)
        heap = CodeHeap(end - (512 << 20), end, 0, 7)
        with pytest.raises(ValueError, match="cannot be read"):
            cache._blobs(heap, bytes(512 << 13), 100_000)


def test_options_of_no_size() -> None:
    """They are unknown, like those of a JVM that does not publish them."""
    words = (ctypes.c_uint64 * 2)(8, ctypes.addressof(ctypes.c_uint64()))
    at = ctypes.addressof(words)
    with RemoteMemory(os.getpid()) as memory:
        assert read_flag(memory, FlagLayout(at + 8, at, 0, 0, 0), "UsePerfData") is None


@pytest.mark.parametrize(("table", "rows"), [(b"\x0a\x13" * 700 + b"\0", 1_400), (b"\x0a" * 60_000, 0)])
def test_lines_of_a_method(table: bytes, rows: int) -> None:
    """A table has an end, and is not so long; longer ones are left out."""
    text = ctypes.create_string_buffer(table)
    with RemoteMemory(os.getpid()) as memory:
        reader = MethodReader(memory, None, excludes_zero=False)  # type: ignore[arg-type]
        assert len(reader._lines(ctypes.addressof(text))) == rows
