"""The reader of a BPF ring buffer (Documentation/bpf/ringbuf.rst).

The kernel maps one page with the consumer's position, one with the producer's, and the data twice in a row,
so a record that wraps around is contiguous. A record is a header of two u32, its length (with a bit for
"still being written" and one for "discarded") and a page offset, and its data, padded to 8 bytes.

Only the data to be read is mapped, and only during the reading: each mapped page counts as resident, twice if
it is mapped twice.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

import numpy as np

_PAGE_BYTES = mmap.PAGESIZE
_DATA_AT = 2 * _PAGE_BYTES
_HEADER_BYTES = 8
_ALIGNMENT = 8
_BUSY = 1 << 31
_DISCARDED = 1 << 30


class RingReader:
    """Reads the records in the ring buffer `fd` of `size_bytes`, as its only reader.

    The caller owns the descriptor.

    Only `release` frees records: the next reader gets records that were read but not released.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._fd = fd
        self._mask = size_bytes - 1
        self._consumer = mmap.mmap(fd, _PAGE_BYTES)
        self._producer = mmap.mmap(fd, _PAGE_BYTES, prot=mmap.PROT_READ, offset=_PAGE_BYTES)
        self._released: int = struct.unpack_from("=Q", self._consumer)[0]
        self.position: int = self._released
        """Where the next record will be read; positions only grow."""

    @property
    def unreleased_bytes(self) -> int:
        """The bytes that were read and still occupy the ring."""
        return self.position - self._released

    def close(self) -> None:
        """Unmap the ring."""
        self._consumer.close()
        self._producer.close()

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield the current records in order, each with its position.

        Later records wait for the next call, since a program that writes as fast as this reads must not keep
        it here.
        """
        end = self._produced()
        if self.position == end:
            return
        with self._mapped(end) as data:
            while self.position < end:
                start = len(data) - (end - self.position)
                (length,) = struct.unpack_from("=I", data, start)
                if length & _BUSY:
                    return
                size = length & ~(_BUSY | _DISCARDED)
                found = self.position, data[start + _HEADER_BYTES : start + _HEADER_BYTES + size]
                self.position += (size + _HEADER_BYTES + 7) & ~7
                if not length & _DISCARDED:
                    yield found

    def rows(self, layout: np.dtype) -> np.ndarray:
        """Copies of all current records, which all have this layout; none may ever be discarded."""
        framed = np.dtype([("length", "u4"), ("page", "u4"), ("row", layout)])
        assert framed.itemsize % _ALIGNMENT == 0
        end = self._produced()
        count = (end - self.position) // framed.itemsize
        if not count:
            return np.empty(0, layout)
        with self._mapped(end) as data:
            records = np.frombuffer(data, framed, count, len(data) - (end - self.position))
            busy = np.flatnonzero(records["length"] & _BUSY)
            rows = records["row"][: busy[0] if len(busy) else count].copy()
            # References to the mapping would keep it from being closed.
            del records
        self.position += len(rows) * framed.itemsize
        return rows

    def release(self) -> None:
        """Free the space of all records that were read."""
        self._released = self.position
        struct.pack_into("=Q", self._consumer, 0, self.position)

    def _produced(self) -> int:
        """The position of the next record."""
        produced: int = struct.unpack_from("=Q", self._producer)[0]
        return produced

    def _mapped(self, end: int) -> mmap.mmap:
        """The data from the page of `position` up to `end`."""
        start = self.position & self._mask
        before = start % _PAGE_BYTES
        length = before + end - self.position
        return mmap.mmap(self._fd, length, prot=mmap.PROT_READ, offset=_DATA_AT + start - before)
