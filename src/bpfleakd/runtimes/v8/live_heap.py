"""What V8's collections leave alive, by the headers of its pages.

V8 has its heap in pages of 256 KiB, or larger ones of one object each, and at the beginning of each there is
how much of it is allocated, from the last sweep on (BasicMemoryChunk in src/heap/basic-memory-chunk.h, the
same in 10.2 and 11.3). Scavenges and the program only add to what is in old pages: if that has become less,
there was a collection of the whole heap, and what is left was alive at it, but for what came since the last
reading. A collection that frees next to nothing is not seen.

Read once in a while, without the process' help: 100 MB are 400 headers, a millisecond.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from bpfleakd.errors import BpfleakdError
from bpfleakd.model.mapping import Mapping
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.runtime import LiveHeap

__all__ = ["V8LiveHeap"]

PAGE_BYTES = 256 << 10
# size, flags, heap, area start, area end, allocated bytes
HEADER = struct.Struct("<6Q")
# FROM_PAGE and TO_PAGE: the young generation.
_YOUNG = 0x18
_READ_EVERY_NS = 2_000_000_000
_PAGES_MAX = 1 << 16
_PAGE_MAX_BYTES = 8 << 30
# A collection of the whole heap frees at least so much; objects are trimmed in between.
_FREED_MIN_SHARE, _FREED_MIN_BYTES = 0.005, 64 << 10


class V8LiveHeap:
    """The collections of one process since the attach, of all its isolates together.

    `failure` says why nothing is known of them.
    """

    def __init__(self, memory: RemoteMemory, mappings: Callable[[], Sequence[Mapping]]) -> None:
        self._memory = memory
        self._mappings = mappings
        self._before_bytes: int | None = None
        self._due_ns = 0
        self._count = 0
        self.failure: str | None = None
        self.watched_since_ns: int | None = None

    def read(self, now_ns: int) -> Sequence[LiveHeap]:
        """The collections since the last call: the last one, if there was any."""
        if now_ns < self._due_ns:
            return ()
        self._due_ns = now_ns + _READ_EVERY_NS
        try:
            old_bytes = sum(allocated for _heap, allocated in self._old_pages())
        except (OSError, BpfleakdError) as error:
            self.failure = str(error)
            return ()
        if not old_bytes:
            self.failure = "the pages of its heap are not as expected"
            return ()
        self.failure = None
        before, self._before_bytes = self._before_bytes, old_bytes
        if before is None:
            self.watched_since_ns = now_ns
            return ()
        if before - old_bytes < max(_FREED_MIN_BYTES, _FREED_MIN_SHARE * before):
            return ()
        self._count += 1
        return [LiveHeap(now_ns, old_bytes, self._count)]

    def _old_pages(self) -> list[tuple[int, int]]:
        """The heap and the allocated bytes of each old page. Raises OSError or BpfleakdError."""
        found = list(self._pages())
        # A process has a heap for each thread that runs JavaScript; what one page alone has is none.
        heaps = Counter(heap for heap, _allocated, _flags in found)
        return [
            (heap, allocated) for heap, allocated, flags in found if heaps[heap] > 1 and not flags & _YOUNG
        ]

    def _pages(self) -> Iterator[tuple[int, int, int]]:
        count = 0
        for mapping in self._mappings():
            if mapping.path or mapping.inode or not mapping.writable:
                continue
            page = -(-mapping.start // PAGE_BYTES) * PAGE_BYTES
            while page + HEADER.size <= mapping.end and count < _PAGES_MAX:
                count += 1
                try:
                    header = HEADER.unpack(self._memory.read(page, HEADER.size))
                except OSError:
                    # It has gone meanwhile.
                    break
                size_bytes, flags, heap, begin, end, allocated = header
                is_page = (
                    PAGE_BYTES <= size_bytes <= _PAGE_MAX_BYTES
                    and heap
                    and not heap % 8
                    and page < begin < end <= page + size_bytes
                    and allocated <= end - begin
                )
                if is_page:
                    yield heap, allocated, flags
                page += -(-size_bytes // PAGE_BYTES) * PAGE_BYTES if is_page else PAGE_BYTES
