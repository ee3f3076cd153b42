"""Memory of a real child process, which maps what the tests need."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from bpfleakd import errors
from bpfleakd.process.memory import MemoryPart, MemoryReader, written_parts

PAGE = 4096

# Maps 16 pages and writes to pages 1, 2 and 5; shares 4 and writes to page 3; unmaps the last one of both.
_CHILD = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None)
own = mmap.mmap(-1, 16 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in (1, 2, 5):
    own[page * 4096 : page * 4096 + 8] = (page * 23).to_bytes(8, "little")
shared = mmap.mmap(-1, 4 * 4096)
shared[3 * 4096] = 23
start = lambda area: ctypes.addressof(ctypes.c_char.from_buffer(area))
libc.madvise(ctypes.c_void_p(start(own)), ctypes.c_size_t(16 * 4096), 15)
libc.munmap(ctypes.c_void_p(start(own) + 9 * 4096), ctypes.c_size_t(4096))
print(start(own), start(shared), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def child():
    """(pid, address of the private pages, address of the shared ones)."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    own, shared = map(int, process.stdout.readline().split())
    yield process.pid, own, shared
    process.communicate("")


def test_pages_that_were_written(child) -> None:
    """Untouched pages are not read, and neighbours are one part."""
    pid, own, _shared = child
    part = MemoryPart(own + 2 * PAGE + 64, own + 9 * PAGE)
    assert written_parts(pid, MemoryPart(own, own + 9 * PAGE), shared=False) == [
        MemoryPart(own + PAGE, own + 3 * PAGE),
        MemoryPart(own + 5 * PAGE, own + 6 * PAGE),
    ]
    assert written_parts(pid, part, shared=False)[0] == MemoryPart(part.start, own + 3 * PAGE)


def test_shared_pages(child) -> None:
    """They have no owner, and are read if they are resident."""
    pid, _own, shared = child
    part = MemoryPart(shared, shared + 4 * PAGE)
    assert written_parts(pid, part, shared=False) == []
    assert written_parts(pid, part, shared=True) == [MemoryPart(shared + 3 * PAGE, shared + 4 * PAGE)]


def test_reading(child) -> None:
    """Pieces come with their addresses; a hole is passed over, and counted."""
    pid, own, _shared = child
    reader = MemoryReader(pid)
    parts = [MemoryPart(own + PAGE, own + 2 * PAGE), MemoryPart(own + 8 * PAGE, own + 11 * PAGE)]
    parts += [MemoryPart(own + 2 * PAGE, own + 2 * PAGE + 16)]
    found = {}
    for addresses, lengths, words in reader.read(parts):
        assert lengths.sum() == len(words)
        for address, piece in zip(addresses.tolist(), np.split(words, np.cumsum(lengths)[:-1]), strict=True):
            for index, word in enumerate(piece.tolist()):
                found[address + 8 * index] = word
    expected = {
        address
        for start, end in ((1, 2), (8, 9), (10, 11))
        for address in range(own + start * PAGE, own + end * PAGE, 8)
    }
    assert set(found) == expected | {own + 2 * PAGE, own + 2 * PAGE + 8}
    assert (found[own + PAGE], found[own + 2 * PAGE]) == (23, 46)
    assert (reader.read_bytes, reader.unread_bytes) == (3 * PAGE + 16, PAGE)


def test_more_than_one_call_takes(child) -> None:
    """Thousands of pieces, and one larger than the buffer."""
    pid, own, _shared = child
    pieces = [MemoryPart(own + PAGE, own + PAGE + 8)] * 5_003
    reader = MemoryReader(pid)
    words = np.concatenate([words.copy() for _addresses, _lengths, words in reader.read(pieces)])
    assert words.tolist() == [23] * 5_003
    mine = np.arange(500_009, dtype=np.uint64)
    start = mine.ctypes.data

    reader = MemoryReader(os.getpid())
    read = [words.copy() for _a, _l, words in reader.read([MemoryPart(start, start + mine.nbytes)])]
    assert len(read) > 1
    assert np.array_equal(np.concatenate(read), mine)


def test_single_words(child) -> None:
    """One by one, with 0 for those that are not there."""
    pid, own, _shared = child
    addresses = np.array([own + PAGE, own + 9 * PAGE, own + 5 * PAGE, 8, own + 2 * PAGE], np.uint64)
    assert MemoryReader(pid).words(addresses).tolist() == [23, 0, 115, 0, 46]


def test_a_process_that_has_ended() -> None:
    """Said so, whichever comes first."""
    process = subprocess.Popen(["true"])
    process.wait()
    part = MemoryPart(PAGE, 2 * PAGE)
    with pytest.raises(errors.NoSuchProcess):
        written_parts(process.pid, part, shared=False)
    with pytest.raises(errors.NoSuchProcess):
        list(MemoryReader(process.pid).read([part]))
