"""The heaps of V8 in another process, by the headers of their pages.

A heap consists of pages of 256 KiB, and larger ones of one object each. The header of a page has the address
of its heap (BasicMemoryChunk in src/heap/basic-memory-chunk.h, the same in 10.2 and 11.3). A process has a
heap for each thread that runs JavaScript.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.remote_memory import RemoteMemory

PAGE_BYTES = 256 << 10
# size, flags, heap, area start, area end, allocated bytes
HEADER = struct.Struct("<6Q")
_PAGES_MAX = 1 << 16
_PAGE_MAX_BYTES = 8 << 30
# A heap has more than one page.
_PAGES_MIN = 2
_HEAPS_MAX = 64


def heaps_of(memory: RemoteMemory, mappings: Iterable[Mapping]) -> dict[int, int]:
    """The addresses of the heaps, with the bytes of their pages; at most the 64 largest heaps."""
    pages: Counter[int] = Counter()
    sizes_bytes: Counter[int] = Counter()
    left = _PAGES_MAX
    for mapping in mappings:
        if mapping.path or mapping.inode or not mapping.writable:
            continue
        first = -(-mapping.start // PAGE_BYTES) * PAGE_BYTES
        places = range(first, mapping.end - HEADER.size + 1, PAGE_BYTES)[:left]
        left -= len(places)
        # All at once: a read costs much more than what is read, even of the inside of large pages.
        headers = memory.gather(places, HEADER.size)
        page = first
        while page in places:
            header = headers[(page - first) // PAGE_BYTES]
            if not header:
                # It has gone meanwhile.
                break
            size_bytes, _flags, heap, begin, end, allocated = HEADER.unpack(header)
            is_page = (
                PAGE_BYTES <= size_bytes <= _PAGE_MAX_BYTES
                and heap
                and not heap % 8
                and page < begin < end <= page + size_bytes
                and allocated <= end - begin
            )
            if is_page:
                pages[heap] += 1
                sizes_bytes[heap] += size_bytes
            page += -(-size_bytes // PAGE_BYTES) * PAGE_BYTES if is_page else PAGE_BYTES
    largest = sizes_bytes.most_common(_HEAPS_MAX)
    return {heap: size_bytes for heap, size_bytes in largest if pages[heap] >= _PAGES_MIN}
