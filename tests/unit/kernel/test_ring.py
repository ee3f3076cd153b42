"""The reader of ring buffers; the ring is a file."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bpfleakd.kernel import abi
from bpfleakd.kernel.ring import RingReader

FRAME = np.dtype([("length", "u4"), ("page", "u4"), ("row", abi.CHANGED_SITE)])
DISCARDED = 1 << 30


@pytest.fixture
def ring_file() -> Iterator[int]:
    fd = os.memfd_create("ring", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4 * mmap.PAGESIZE)
    yield fd
    os.close(fd)


def test_rows_are_taken_from_a_ring(ring_file: int) -> None:
    """Also where they go round its end; behind one that is still being written none is read."""
    size = mmap.PAGESIZE
    records = np.zeros(size // FRAME.itemsize + 3, FRAME)
    records["row"]["stack_id"] = np.arange(len(records))
    first, rest = records[:-5], records[-5:]
    with closing(RingReader(ring_file, size)) as ring, mmap.mmap(ring_file, 4 * size) as memory:

        def put(where: int, what: np.ndarray, end: int) -> None:
            for copy in (2 * size, 3 * size):
                for index, record in enumerate(what):
                    at = copy + (where + index * FRAME.itemsize) % size
                    memory[at : at + FRAME.itemsize] = record.tobytes()
            memory[size : size + 8] = end.to_bytes(8, "little")

        put(0, first, first.nbytes)
        assert ring.rows(abi.CHANGED_SITE)["stack_id"].tolist() == first["row"]["stack_id"].tolist()
        ring.release()
        rest["length"][3] = 1 << 31
        put(first.nbytes, rest, records.nbytes)
        assert ring.rows(abi.CHANGED_SITE)["stack_id"].tolist() == rest["row"]["stack_id"][:3].tolist()
        rest["length"][3] = 0
        put(first.nbytes, rest, records.nbytes)
        assert ring.rows(abi.CHANGED_SITE)["stack_id"].tolist() == rest["row"]["stack_id"][3:].tolist()
        ring.release()
        assert int.from_bytes(memory[:8], "little") == records.nbytes


def test_records_of_any_length(ring_file: int) -> None:
    """In their order, with their positions, also round the end; discarded ones are passed over."""
    size = mmap.PAGESIZE
    with closing(RingReader(ring_file, size)) as ring, mmap.mmap(ring_file, 4 * size) as memory:
        end, expected = 0, []
        for length in (3_001, 16, 1_009, 2_003, 499):
            is_discarded = length == 16
            content = bytes([length % 251]) * length
            header = struct.pack("=II", length | (DISCARDED if is_discarded else 0), 0)
            for copy in (2 * size, 3 * size):
                for index, byte in enumerate(header + content):
                    memory[copy + (end + index) % size] = byte
            if not is_discarded:
                expected.append((end, content))
            end += (8 + length + 7) & ~7
            memory[size : size + 8] = end.to_bytes(8, "little")
            if length != 3_001:
                assert list(ring.records()) == expected
                ring.release()
                expected = []
        assert list(ring.records()) == []


def test_data_is_mapped_only_while_it_is_read(ring_file: int) -> None:
    """Mapped pages count as resident memory of the daemon."""
    size = mmap.PAGESIZE
    with closing(RingReader(ring_file, size)) as ring, mmap.mmap(ring_file, 4 * size) as memory:
        idle = mappings_of(ring_file)
        record = struct.pack("=II", 8, 0) + bytes(8)
        memory[2 * size : 2 * size + len(record)] = record
        memory[size : size + 8] = len(record).to_bytes(8, "little")
        reading = ring.records()
        next(reading)
        assert mappings_of(ring_file) == idle + 1
        assert next(reading, None) is None
        assert mappings_of(ring_file) == idle


def mappings_of(fd: int) -> int:
    """The number of mappings of a file."""
    inode = f" {os.fstat(fd).st_ino} "
    return sum(inode in line for line in Path("/proc/self/maps").read_text().splitlines())
