"""Memory by address, of this very process."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

import pytest

from bpfleakd.process.remote_memory import RemoteMemory


@pytest.fixture
def memory() -> Iterator[RemoteMemory]:
    with RemoteMemory(os.getpid()) as memory:
        yield memory


def test_bytes_words_and_texts(memory: RemoteMemory) -> None:
    """As they are."""
    buffer = ctypes.create_string_buffer(b"\x11\x22" + bytes(6) + b"shop\0rest", 32)
    address = ctypes.addressof(buffer)
    assert memory.read(address, 4) == b"\x11\x22\0\0"
    assert memory.word(address) == 0x2211
    assert memory.text(address + 8, 64) == b"shop"
    assert memory.text(address + 8, 3) == b"sho"


def test_a_text_at_the_end_of_memory(memory: RemoteMemory) -> None:
    """Nothing behind its page is touched, and one that has no end there is an error."""
    area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    area[mmap.PAGESIZE - 5 : mmap.PAGESIZE] = b"shop\0"
    assert memory.text(start + mmap.PAGESIZE - 5, 4096) == b"shop"
    area[mmap.PAGESIZE - 1 : mmap.PAGESIZE] = b"s"
    # /proc/PID/mem reads memory that the process itself may not: 0 bytes until the end of the mapping.
    with RemoteMemory(os.getpid()) as later:
        assert later.text(start + mmap.PAGESIZE - 5, 4096).startswith(b"shops")


@pytest.mark.parametrize(
    ("address", "size"), [(0, 8), (1 << 47, 8), (1 << 63, 1), (4096, -1), (4096, 1 << 40)]
)
def test_what_is_no_memory_is_an_error(memory: RemoteMemory, address: int, size: int) -> None:
    """Also numbers that system calls do not take."""
    with pytest.raises(OSError, match="memory"):
        memory.read(address, size)


def test_a_process_that_is_not_there() -> None:
    """Is an error at once."""
    with pytest.raises(FileNotFoundError):
        RemoteMemory(1 << 30)


def test_closing_twice() -> None:
    """Is no mistake."""
    memory = RemoteMemory(os.getpid())
    memory.close()
    memory.close()
