"""The reader of a BPF ring buffer (Documentation/bpf/ringbuf.rst).

The kernel maps one page with the consumer's position, one with the producer's, and the data twice in a
row, so that a record that wraps around is still in one piece. A record is a header of two u32, its length
(with a bit for "still being written" and one for "discarded") and a page offset, and its data, padded to
8 bytes.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

__all__ = ["RingReader"]

_PAGE_BYTES = mmap.PAGESIZE
_HEADER_BYTES = 8
_BUSY = 1 << 31
_DISCARDED = 1 << 30


class RingReader:
    """Reads what programs put into the ring buffer `fd` of `size_bytes`. There may be only one reader."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._mask = size_bytes - 1
        self._consumer = mmap.mmap(fd, _PAGE_BYTES)
        self._producer = mmap.mmap(fd, _PAGE_BYTES + 2 * size_bytes, prot=mmap.PROT_READ, offset=_PAGE_BYTES)

    def close(self) -> None:
        """Unmap it."""
        self._consumer.close()
        self._producer.close()

    def records(self) -> Iterator[bytes]:
        """The records that are there, in their order; what comes meanwhile is read too."""
        (position,) = struct.unpack_from("=Q", self._consumer)
        while position < struct.unpack_from("=Q", self._producer)[0]:
            start = _PAGE_BYTES + (position & self._mask)
            (length,) = struct.unpack_from("=I", self._producer, start)
            if length & _BUSY:
                return
            size = length & ~(_BUSY | _DISCARDED)
            if not length & _DISCARDED:
                yield self._producer[start + _HEADER_BYTES : start + _HEADER_BYTES + size]
            position += (size + _HEADER_BYTES + 7) & ~7
            # The room is given back record by record, so that programs find it while we read.
            struct.pack_into("=Q", self._consumer, 0, position)
