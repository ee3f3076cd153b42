"""Words and bytes of another process' memory, by address.

The descriptor belongs to the address space that the process had when it was opened: a later exec or another
process with the same pid is never read instead.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from bpfleakd.process.reading.reads import TargetFile, read_pieces

__all__ = ["RemoteMemory"]

_WORD = struct.Struct("<Q")
_ADDRESSES_END = 1 << 47
# Enough for everything that is read at once; what a process claims about its sizes is not trusted.
_READ_MAX_BYTES = 64 << 20
_PAGE_BYTES = 4096
_SMALL_BYTES = 1024
_PAGES_MAX = 256
_GATHERED_MAX = 1024  # UIO_MAXIOV
_PIECE = struct.Struct("=QQ")
_MOMENT_S = 0.005


class RemoteMemory:
    """Reads `/proc/PID/mem`. A context manager. Every read raises OSError where memory is not there.

    TimeoutError is one of these: the process keeps its readers waiting.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        """Raises OSError if the process has ended or may not be read."""
        self._pid = pid
        self._file = TargetFile(pid, proc / str(pid) / "mem")
        self._pages: dict[int, bytes] = {}
        self._pages_s = 0.0

    def read(self, address: int, size_bytes: int) -> bytes:
        """Return exactly `size_bytes` bytes."""
        if not (0 < address < _ADDRESSES_END and 0 <= size_bytes <= _READ_MAX_BYTES):
            raise OSError(f"no memory of {size_bytes} bytes at {address:#x}")
        if 0 < size_bytes <= _SMALL_BYTES:
            return self._of_pages(address, size_bytes)
        return self._exactly(address, size_bytes)

    def renew(self) -> None:
        """Have what is read from now on be as it is from now on."""
        self._pages.clear()

    def _of_pages(self, address: int, size_bytes: int) -> bytes:
        first = address & -_PAGE_BYTES
        data = self._page(first)
        if address + size_bytes > first + _PAGE_BYTES:
            data += self._page(first + _PAGE_BYTES)
        return data[address - first : address - first + size_bytes]

    def word(self, address: int) -> int:
        """Return the 64-bit word at an address."""
        word: int = _WORD.unpack(self.read(address, _WORD.size))[0]
        return word

    def text(self, address: int, limit_bytes: int) -> bytes:
        """Return a NUL-terminated text, cut at `limit_bytes`; it may end at the end of a page."""
        room = min(limit_bytes, 4096 - address % 4096)
        text, terminator, _ = self.read(address, room).partition(b"\0")
        if terminator or room == limit_bytes:
            return text
        return text + self.text(address + room, limit_bytes - room)

    def _page(self, address: int) -> bytes:
        """A page as it is, or was a moment ago: structures lie together, and any read costs as much."""
        now_s = time.monotonic()
        if now_s - self._pages_s > _MOMENT_S or len(self._pages) >= _PAGES_MAX:
            self._pages.clear()
            self._pages_s = now_s
        page = self._pages.get(address)
        if page is None:
            page = self._pages[address] = self._exactly(address, _PAGE_BYTES)
        return page

    def _exactly(self, address: int, size_bytes: int) -> bytes:
        data = self._file.read_memory(size_bytes, address)
        if len(data) != size_bytes:
            raise OSError(f"{size_bytes} bytes at {address:#x}: only {len(data)} can be read")
        return data

    def follow(self, address: int, size_bytes: int, *, link_at: int, end: int, count: int) -> bytes:
        """Return the elements of a list, one behind the other: the first is at `address`.

        Each has the address of the next at `link_at`; the list ends at the address `end`. There are less if
        one cannot be read, and less than `count` of a long list: then ask for the others.
        """
        return self._file.follow(size_bytes, address, link_at=link_at, end=end, count=count)

    def gather(self, addresses: Sequence[int], size_bytes: int) -> list[bytes]:
        """Return what is at each address; b"" where it cannot be read. Raises OSError if nothing can be."""
        found: list[bytes] = []
        buffer = ctypes.create_string_buffer(_GATHERED_MAX * size_bytes)
        while len(found) < len(addresses):
            some = addresses[len(found) : len(found) + _GATHERED_MAX]
            pieces = b"".join(_PIECE.pack(address, size_bytes) for address in some)
            try:
                got = read_pieces(self._pid, pieces, ctypes.addressof(buffer), len(buffer))
            except OSError as error:
                if error.errno != errno.EFAULT:
                    raise
                got = 0
            count = got // size_bytes
            found += (buffer.raw[at * size_bytes : (at + 1) * size_bytes] for at in range(count))
            # Behind those that were read is one that cannot be.
            found += [b""] * (count < len(some))
        return found

    def close(self) -> None:
        """Close the descriptor; may be called more than once."""
        self._file.close()

    def __enter__(self) -> RemoteMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
