"""The code cache of a JVM: the place of each piece of code, and the size of its frames.

The cache consists of heaps, a heap of segments. A map of the segments shows where blocks begin. A block is
free or contains a blob: a compiled method, the interpreter or stubs. (src/hotspot/share/memory/heap.hpp,
code/codeBlob.hpp)

The process runs while a snapshot is read. An inconsistent blob, which is just being created, is left out; the
next snapshot has it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.process.memory import MemoryPart, MemoryReader, Pieces
from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm.layout import CodeLayout, JvmLayout

_HEAPS_MAX = 8
# All heaps together: 240 MB by default, 2 GB at most (-XX:ReservedCodeCacheSize).
_HEAPS_MAX_BYTES = 2 << 30
# 64 or 128 bytes (-XX:CodeCacheSegmentSize).
_LOG2_SEGMENTS = range(6, 13)
_BLOBS_MAX = 100_000
# Blocks on an unreadable page: each takes a separate call.
_UNREAD_MAX = 2_000
_READ_AT_ONCE = 1_024
_SEGMENTS_AT_ONCE = 1 << 20
_FRAME_MAX_WORDS = 1 << 16
_ADDRESSES_END = 1 << 47


class CodeHeap(Struct, frozen=True):
    """Committed memory for code, [start, end), and the address of the map of its segments."""

    start: int
    end: int
    segments: int
    log2_segment: int


class CodeSnapshot(Struct, frozen=True, eq=False):
    """Blobs as parallel arrays, by address.

    The size of a frame is 0 if unknown; `names` are addresses of texts.

    `methods` is the word after the head of a blob: in a compiled method the Method*, otherwise something
    else. `segments` are digests of the maps of the heaps. `is_whole`: no blob was left out that may just be
    in creation. `used_bytes` is the size of the blobs.
    """

    heaps: tuple[CodeHeap, ...]
    blobs: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    names: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    starts: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    ends: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    frame_words: NDArray[np.uint32] = msgspec.field(default_factory=lambda: np.zeros(0, np.uint32))
    methods: NDArray[np.uint64] = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    interpreter: tuple[int, int] = (0, 0)
    segments: tuple[bytes, ...] = ()
    is_whole: bool = True
    used_bytes: int = 0

    @property
    def committed_bytes(self) -> int:
        """The size of its heaps."""
        return sum(heap.end - heap.start for heap in self.heaps)


def is_same_code(snapshot: CodeSnapshot, other: CodeSnapshot) -> bool:
    """Whether both have the same code at the same places."""
    columns = ("blobs", "starts", "ends", "frame_words", "methods")
    return snapshot.heaps == other.heaps and all(
        np.array_equal(getattr(snapshot, column), getattr(other, column)) for column in columns
    )


def row_at(snapshot: CodeSnapshot, address: int) -> int | None:
    """The row of the blob with code at an address; None if there is none."""
    if not any(heap.start <= address < heap.end for heap in snapshot.heaps):
        return None
    row = int(np.searchsorted(snapshot.starts, np.uint64(address), side="right")) - 1
    return row if row >= 0 and address < int(snapshot.ends[row]) else None


class CodeCache:
    """Reads the code cache of one process."""

    def __init__(self, pid: int, memory: RemoteMemory, layout: JvmLayout) -> None:
        self._memory = memory
        self._reader = MemoryReader(pid)
        self._layout = layout

    def read(self, before: CodeSnapshot | None = None) -> CodeSnapshot:
        """Read all blobs; none before the JVM has started. Returns `before` if no block came or went.

        Raises OSError or BpfleakdError if the process has ended, ValueError if the data is inconsistent.
        """
        heaps = self._heaps()
        segments = tuple(
            self._memory.read(heap.segments, (heap.end - heap.start) >> heap.log2_segment) for heap in heaps
        )
        digests = tuple(hashlib.blake2b(map_, digest_size=16).digest() for map_ in segments)
        if before is not None and before.is_whole and (heaps, digests) == (before.heaps, before.segments):
            return before
        found: list[NDArray[np.void]] = []
        for heap, map_ in zip(heaps, segments, strict=True):
            found.append(self._blobs(heap, map_, _BLOBS_MAX - sum(len(part) for part in found)))
        # The reader uses the pid: if the memory still exists, it belongs to this very process.
        if heaps:
            self._memory.read(heaps[0].segments, 1)
        records = np.concatenate([np.zeros(0, _record(self._layout.code)), *found])
        return self._snapshot(heaps, digests, records)

    def _heaps(self) -> tuple[CodeHeap, ...]:
        memory, layout = self._memory, self._layout.code
        array = memory.word(layout.heaps)
        if not array:
            return ()
        # GrowableArrayBase: length and capacity, both int; then the elements, in 11 after an arena.
        count = int.from_bytes(memory.read(array, 4), "little", signed=True)
        if not 0 <= count <= _HEAPS_MAX:
            raise ValueError(f"{count} code heaps")
        elements = memory.word(array + layout.heaps_elements)
        addresses = struct.unpack(f"<{count}Q", memory.read(elements, 8 * count))
        heaps = tuple(self._heap(address) for address in addresses)
        if sum(heap.end - heap.start for heap in heaps) > _HEAPS_MAX_BYTES:
            raise ValueError("a code cache that is too large")
        return heaps

    def _heap(self, address: int) -> CodeHeap:
        memory, layout = self._memory, self._layout.code
        start = memory.word(address + layout.heap_memory + layout.space_low)
        end = memory.word(address + layout.heap_memory + layout.space_high)
        segments = memory.word(address + layout.heap_segments + layout.space_low)
        log2_segment = int.from_bytes(memory.read(address + layout.log2_segment, 4), "little")
        if (
            not 0 < start <= end <= min(start + _HEAPS_MAX_BYTES, _ADDRESSES_END)
            or log2_segment not in _LOG2_SEGMENTS
            or start % 4096
        ):
            raise ValueError("a code heap that makes no sense")
        return CodeHeap(start, end, segments, log2_segment)

    def _blobs(self, heap: CodeHeap, segments: bytes, limit: int) -> NDArray[np.void]:
        """The used blocks of a heap, `limit` at most, as records of `_record`."""
        layout = self._layout.code
        record = _record(layout)
        blocks = heap.start + (_starts(segments, limit) << heap.log2_segment)
        blocks = blocks[blocks <= heap.end - record.itemsize]
        rows = [np.zeros(0, record)]
        for addresses, lengths, words in self._read(blocks):
            if len(words) * 8 != len(lengths) * layout.read_bytes:
                continue  # a page is missing: not of a used block
            found = np.zeros(len(lengths), record)
            found["block"] = addresses
            found.view(np.uint8).reshape(len(lengths), -1)[:, 8:] = words.view(np.uint8).reshape(
                len(lengths), -1
            )
            rows.append(found)
        found = np.concatenate(rows)
        length = found["length"].astype(np.uint64) << np.uint64(heap.log2_segment)
        is_used = (found["used"] == 1) & (length > 0) & (found["block"] + length <= heap.end)
        used: NDArray[np.void] = found[is_used]
        return used

    def _read(self, blocks: NDArray[np.int64]) -> Iterator[Pieces]:
        """The same as MemoryReader.read. Raises ValueError if too many blocks are unreadable."""
        read_bytes, unread_bytes = self._layout.code.read_bytes, self._reader.unread_bytes
        for at in range(0, len(blocks), _READ_AT_ONCE):
            some = blocks[at : at + _READ_AT_ONCE].tolist()
            yield from self._reader.read([MemoryPart(one, one + read_bytes) for one in some])
            if self._reader.unread_bytes - unread_bytes > _UNREAD_MAX * read_bytes:
                raise ValueError("much of the code cache cannot be read")

    def _snapshot(
        self, heaps: tuple[CodeHeap, ...], segments: tuple[bytes, ...], records: NDArray[np.void]
    ) -> CodeSnapshot:
        layout = self._layout.code
        blobs = records["block"] + np.uint64(layout.block_bytes)
        begin, end = (records[name].astype(np.uint64) for name in ("code_begin", "code_end"))
        if layout.is_relative:
            begin, end = begin + blobs, end + blobs
        sizes = records["size"].astype(np.int64)
        frame_words = records["frame_size"].astype(np.int64)
        is_sound = (sizes > 0) & (begin > blobs) & (begin <= end) & (end <= blobs + sizes.astype(np.uint64))
        order = np.flatnonzero(is_sound)
        order = order[np.argsort(begin[order], kind="stable")]
        known = (frame_words > 1) & (frame_words < _FRAME_MAX_WORDS)
        return CodeSnapshot(
            heaps=heaps,
            blobs=blobs[order],
            names=records["name"][order],
            starts=begin[order],
            ends=end[order],
            frame_words=np.where(known, frame_words, 0).astype(np.uint32)[order],
            methods=records["method"][order],
            interpreter=self._interpreter(heaps),
            segments=segments,
            is_whole=len(order) == len(records),
            used_bytes=int(sizes[order].sum()),
        )

    def _interpreter(self, heaps: Sequence[CodeHeap]) -> tuple[int, int]:
        """The range of the interpreter's code; (0, 0) before it exists."""
        queue = self._memory.word(self._layout.interpreter)
        if not queue:
            return 0, 0
        start = self._memory.word(queue + self._layout.queue_buffer)
        size_bytes = int.from_bytes(self._memory.read(queue + self._layout.queue_limit, 4), "little")
        if not any(heap.start <= start < start + size_bytes <= heap.end for heap in heaps):
            raise ValueError("the interpreter is not in the code cache")
        return start, start + size_bytes


def _starts(segments: bytes, limit: int) -> NDArray[np.int64]:
    """The numbers of the first `limit` segments in which blocks begin."""
    found, count = [np.zeros(0, np.int64)], 0
    for at in range(0, len(segments), _SEGMENTS_AT_ONCE):
        if count >= limit:
            break
        some = np.frombuffer(segments, np.uint8, min(_SEGMENTS_AT_ONCE, len(segments) - at), at)
        found.append(np.flatnonzero(some == 0) + at)
        count += len(found[-1])
    return np.concatenate(found)[:limit]


def _record(layout: CodeLayout) -> np.dtype[np.void]:
    """The address of a block, and the part of it that is read: its header, and the head of its blob."""
    address = "<u8" if not layout.is_relative else "<u4"
    columns = {
        "length": (8, f"<u{layout.length_bytes}"),
        "used": (8 + layout.used, "u1"),
        **{
            name: (8 + layout.block_bytes + getattr(layout, name), kind)
            for name, kind in (
                *(("name", "<u8"), ("size", "<i4"), ("frame_size", "<i4"), ("method", "<u8")),
                *(("code_begin", address), ("code_end", address)),
            )
        },
    }
    return np.dtype(
        {
            "names": ["block", *columns],
            "formats": ["<u8", *(kind for _place, kind in columns.values())],
            "offsets": [0, *(place for place, _kind in columns.values())],
            "itemsize": 8 + layout.read_bytes,
        }
    )
