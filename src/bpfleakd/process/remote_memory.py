"""Words and bytes of another process' memory, by address.

The descriptor belongs to the address space that the process had when it was opened: a later exec or another
process with the same pid is never read instead.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from bpfleakd.process.reading import server
from bpfleakd.process.reading.reads import TargetFile

_WORD = struct.Struct("<Q")
_ADDRESSES_END = 1 << 47
# Enough for any single read; sizes from the process are not trusted.
_READ_MAX_BYTES = 64 << 20
_PAGE_BYTES = 4096
_SMALL_BYTES = 1024
_PAGES_MAX = 256
# The capacity of a request, for addresses of eight bytes.
_GATHERED_MAX = 2_000
_LISTS_MAX = 500
_ELEMENT_WORDS = server.ELEMENT_BYTES // 8
_MOMENT_S = 0.005


class ListElements(Struct, frozen=True):
    """Elements of lists, unordered: addresses, words (n x 4). `cut` lists were not read to their end."""

    addresses: NDArray[np.uint64]
    words: NDArray[np.uint64]
    cut: int


class RemoteMemory:
    """Reads `/proc/PID/mem`. A context manager. Every read raises OSError if the memory does not exist.

    TimeoutError, an OSError, means that the process keeps its readers waiting.
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
        """Drop cached pages, so later reads see the current memory."""
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
        """A NUL-terminated text, cut at `limit_bytes`; it may also end with the end of a page."""
        room = min(limit_bytes, 4096 - address % 4096)
        text, terminator, _ = self.read(address, room).partition(b"\0")
        if terminator or room == limit_bytes:
            return text
        return text + self.text(address + room, limit_bytes - room)

    def _page(self, address: int) -> bytes:
        """A page as of a moment ago: structures are close together, and any read costs the same."""
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

    def rings(self, rings: Sequence[tuple[int, int, int]], count: int) -> ListElements:
        """Follow doubly linked lists; `rings` has the end, the first and the last element of each.

        An element has four words: the third links to the next element and the fourth to the previous one.
        Reads at most `count` elements; elements of lists that change meanwhile may be missing or wrong.
        Raises OSError.
        """
        return self._elements(server.RINGS, [number for ring in rings for number in ring], 3, count, 0)

    def chains(
        self, firsts: Sequence[int], count: int, *, behind_bytes: int, is_mangled: bool
    ) -> ListElements:
        """The same for singly linked lists that end with 0, from their first elements.

        The link is `behind_bytes` after the beginning of an element, and may be mangled as in glibc.
        """
        return self._elements(server.CHAINS, firsts, 1, count, behind_bytes | is_mangled << 63)

    def _elements(
        self, kind: int, lists: Sequence[int], list_words: int, count: int, detail: int
    ) -> ListElements:
        elements: list[NDArray[np.uint64]] = []
        addresses: list[NDArray[np.uint64]] = []
        waiting, cut, left = array("Q", lists), 0, count
        while waiting:
            some = waiting[: _LISTS_MAX * list_words]
            lists_in = len(some) // list_words
            request = server.LISTS.pack(self._pid, left, detail) + some.tobytes()
            answer = self._file.read_words(kind, request)
            found, broken, going, _unused = server.FOUND.unpack_from(answer)
            words = np.frombuffer(answer, np.uint64, offset=server.FOUND.size)
            elements.append(words[: _ELEMENT_WORDS * found].reshape(-1, _ELEMENT_WORDS))
            addresses.append(words[_ELEMENT_WORDS * found : (_ELEMENT_WORDS + 1) * found])
            rest = array("Q", words[(_ELEMENT_WORDS + 1) * found :].tobytes())
            cut, left = cut + broken, left - found
            if not found and going == lists_in:
                # There is no room for one element of each list.
                cut += len(waiting) // list_words
                break
            waiting = rest + waiting[len(some) :]
        if not elements:
            return ListElements(np.zeros(0, np.uint64), np.zeros((0, _ELEMENT_WORDS), np.uint64), cut)
        return ListElements(np.concatenate(addresses), np.concatenate(elements), cut)

    def gather(self, addresses: Sequence[int], size_bytes: int) -> list[bytes]:
        """The bytes at each address; b"" where it cannot be read. Raises OSError if nothing can be read."""
        found: list[bytes] = []
        most = min(_GATHERED_MAX, server.BUFFER_BYTES // (size_bytes + 1))
        while len(found) < len(addresses):
            some = array("Q", addresses[len(found) : len(found) + most])
            request = server.GATHERED.pack(self._pid, size_bytes) + some.tobytes()
            data = self._file.read_words(server.GATHER, request)
            could = data[len(some) * size_bytes :]
            found += (
                data[at * size_bytes : (at + 1) * size_bytes] if could[at] else b"" for at in range(len(some))
            )
        return found

    def close(self) -> None:
        """Close the descriptor; may be called more than once."""
        self._file.close()

    def __enter__(self) -> RemoteMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
