"""Daemon data that outlives the daemon, in a pinned map that only the daemon reads and writes.

The daemon's data on a traced process must last exactly as long as the kernel's tables: longer than the
daemon, but not beyond a reboot. So it is stored in the same place, and takes no disk space.

The value of the map consists of two places to write to, and the number of the one with the last text:

    u64 active; u64 unused; { u64 length; u64 checksum; u8 text[room]; } places[2];

`write` stores a text in the inactive place and then activates it by a single store. A daemon killed at any
instruction therefore leaves the old text or the new one.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

from bpfleakd.kernel import bpf

_HEAD_BYTES = 16
_PLACE_HEAD_BYTES = 16
_LEAST_BYTES = 4 * mmap.PAGESIZE


class Blob:
    """The bytes stored at `path` in bpffs; the first `write` creates the map."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory: mmap.mmap | None = None

    def read(self) -> bytes | None:
        """The last text written; None if there is none, or if it is damaged."""
        if self._memory is None and not self._open():
            return None
        with self._view() as view:
            active = view[0]
            if active > 1:
                return None
            start = self._place(active) // 8
            length, checksum = view[start], view[start + 1]
        if length > self._room:
            return None
        begin = self._place(active) + _PLACE_HEAD_BYTES
        text = self._mapped[begin : begin + length]
        return text if text and zlib.crc32(text) == checksum else None

    def write(self, text: bytes) -> None:
        """Replace the text. Raises OSError if the kernel has no room for it; the old one then remains."""
        there = self._memory is not None or self._open()
        if there and len(text) <= self._room:
            self._fill(text)
        else:
            self._make(text)

    def remove(self) -> None:
        """Delete the stored value."""
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmap the memory; the text remains as long as the pin."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    @property
    def _mapped(self) -> mmap.mmap:
        assert self._memory is not None
        return self._memory

    @property
    def _room(self) -> int:
        return (len(self._mapped) - _HEAD_BYTES) // 2 - _PLACE_HEAD_BYTES

    def _place(self, number: int) -> int:
        return _HEAD_BYTES + number * (_PLACE_HEAD_BYTES + self._room)

    def _view(self) -> memoryview:
        # Words are stored whole: a slice assignment of bytes may be split.
        return memoryview(self._mapped).cast("Q")

    def _fill(self, text: bytes) -> None:
        with self._view() as view:
            number = 1 - view[0] if view[0] <= 1 else 0
            begin = self._place(number) + _PLACE_HEAD_BYTES
            self._mapped[begin : begin + len(text)] = text
            start = self._place(number) // 8
            view[start], view[start + 1] = len(text), zlib.crc32(text)
            view[0] = number

    def _open(self) -> bool:
        try:
            fd = bpf.object_get(self._path)
        except FileNotFoundError:
            return False
        try:
            value_bytes = bpf.map_info(fd).value_bytes
            self._memory = mmap.mmap(fd, value_bytes)
        finally:
            os.close(fd)
        return True

    def _make(self, text: bytes) -> None:
        """Replace the map by one with more room."""
        wanted = _HEAD_BYTES + 2 * (_PLACE_HEAD_BYTES + len(text) + len(text) // 2)
        size = max(_LEAST_BYTES, (wanted + mmap.PAGESIZE - 1) & -mmap.PAGESIZE)
        fd = bpf.map_create(bpf.MapType.ARRAY, 4, size, 1, bpf.MAP_FLAG_MMAPABLE, "bpfleakd_kept")
        beside = self._path.with_name(f"{self._path.name}-new")
        try:
            self.close()
            self._memory = mmap.mmap(fd, size)
            self._fill(text)
            beside.unlink(missing_ok=True)
            bpf.object_pin(fd, beside)
            os.rename(beside, self._path)
        finally:
            os.close(fd)
