"""Perf maps: the names that JIT compilers write to /tmp/perf-PID.map, "START SIZE NAME" in hex.

https://github.com/torvalds/linux/blob/master/tools/perf/Documentation/jit-interface.txt

Rules:
- An unprivileged process writes the file and root reads it: no link out of its root directory, regular files
  only, owned by that process' user (or by root), with limits on everything that is read.
- An address belongs to the newest entry around it, which is the last in the file: code is moved, freed and
  compiled again at the same place.
- Memory contains only numbers, 20 bytes per entry. A name is read from the file when needed, and used if the
  numbers before it have not changed.
- Reading has a budget: a number of bytes at a time, and a pause in proportion to the work of the last
  reading. A file that is rewritten all the time costs no more than others, and its names come late or not at
  all.
- The file grows while it is read: the next `refresh` reads what was appended; a line without its end is read
  later still. A file that was replaced, truncated or rewritten is read from the start.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import PurePosixPath

from msgspec import Struct

from bpfleakd.printable import printable, shortened
from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.symbols.jit_index import JitIndex

# Reading takes 15 ms per megabyte: more than this would stop everything else for longer than a second.
READ_LIMIT_BYTES = 64 << 20
ENTRIES_MAX = 300_000

_CHUNK_BYTES = 1 << 20
# Bytes per reading, which take a thirtieth of a second; the rest follows next time.
_SLICE_BYTES = 2 << 20
# A reading that takes longer than this is followed by a pause of several times its duration.
_SHORT_S = 0.05
_PAUSES = 20
# A line without an end within this limit is invalid, not unfinished.
_LINE_LIMIT_BYTES = 64 << 10
_SEAM_BYTES = 64

# HotSpot pads both numbers with zeroes to 16 digits.
_LINE = re.compile(rb"^(?:0x)?([0-9a-fA-F]{1,16}) +(?:0x)?0{0,8}([0-9a-fA-F]{1,8}) +([^\n]+)$", re.MULTILINE)

NAME_LIMIT_CHARACTERS = 512

# .NET Core writes the addresses of its type descriptions, which differ in every run.
_METHOD_TABLE = re.compile(r" /\* MT: 0x[0-9A-Fa-f]{1,16} \*/")


class JitSymbol(Struct, frozen=True):
    """A function compiled at run time."""

    name: str
    start: int
    size_bytes: int


class PerfMap:
    """The perf map of one process.

    `path` is as the process sees it, below its `root`; `owner_uid` is the target's user. At most
    `read_limit_bytes` are read at a time, the newest, and the `entries_max` newest entries kept. `generation`
    changes whenever an address may have another name. `losses` counts the parts that were left out.
    """

    def __init__(
        self,
        path: PurePosixPath,
        owner_uid: int,
        root: TargetRoot,
        *,
        read_limit_bytes: int = READ_LIMIT_BYTES,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self.generation = 0
        self._root, self._path = root, path
        self._owners = (owner_uid, 0)
        self._read_limit_bytes = read_limit_bytes
        self._index = JitIndex(entries_max)
        self._entries_max = entries_max
        self._descriptor = -1
        self._identity: tuple[int, int] | None = None
        self._position = 0
        self._seam = b""
        self._junk_lines = 0
        self._skipped_bytes = 0
        self._dropped_entries = 0
        self._refused = False
        self._due_s = 0.0

    @property
    def losses(self) -> dict[str, int]:
        """Unused parts of the file: invalid lines, bytes and entries over the limits."""
        losses = {
            "perf_map_junk_lines": self._junk_lines,
            "perf_map_skipped_bytes": self._skipped_bytes,
            "perf_map_dropped_entries": self._dropped_entries + self._index.dropped,
            "perf_map_refused": int(self._refused),
        }
        return {name: count for name, count in losses.items() if count}

    def close(self) -> None:
        """Close the file. Names are no longer found after that."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def open(self) -> bool:
        """Open the file if it exists, without reading; False if it is refused.

        It can be read as long as it is open, even after the process and its /tmp are gone.
        """
        try:
            descriptor = self._root.open_regular(self._path, follow=False)
        except TimeoutError:
            # `ps` reports that the process does not answer.
            return False
        except OSError as error:
            # EINVAL is a link, a pipe or a device; most processes have no map, which is no loss.
            refused = not isinstance(error, FileNotFoundError | ProcessLookupError)
            self._refused |= refused
            return not refused
        status = os.fstat(descriptor)
        if status.st_uid not in self._owners:
            self._refused = True
            os.close(descriptor)
            return False
        self._take(descriptor, (status.st_dev, status.st_ino))
        return True

    def refresh(self) -> None:
        """Read what was appended since the last time. A deleted file keeps its names."""
        began_s, began_work_s = time.monotonic(), time.thread_time()
        if began_s < self._due_s or not self.open() or self._descriptor < 0:
            return
        size_bytes = os.fstat(self._descriptor).st_size
        if self._was_rewritten(size_bytes):
            self._start_over()
        with contextlib.suppress(OSError):
            self._read(size_bytes)
        # Its own processor time, without that of other programs.
        took_s = time.thread_time() - began_work_s
        self._due_s = began_s + took_s * (1 + _PAUSES) if took_s > _SHORT_S else 0.0

    def lookup(self, address: int) -> JitSymbol | None:
        """The function that contains an address, as of the last `refresh`."""
        entry = self._index.find(address)
        if entry is None or self._descriptor < 0:
            return None
        start, size_bytes, offset = entry
        found = _LINE.match(self._line_at(offset))
        if not found or (int(found[1], 16), int(found[2], 16)) != (start, size_bytes):
            # Rewritten during the reading: earlier entries are invalid.
            self._start_over()
            return None
        return JitSymbol(jit_name(found[3]), start, size_bytes)

    def _line_at(self, offset: int) -> bytes:
        try:
            return os.pread(self._descriptor, 4 * NAME_LIMIT_CHARACTERS + 64, offset).partition(b"\n")[0]
        except OSError:
            return b""

    def _take(self, descriptor: int, identity: tuple[int, int]) -> None:
        if identity == self._identity:
            os.close(descriptor)
            return
        self.close()
        self._start_over()
        self._descriptor, self._identity = descriptor, identity

    def _was_rewritten(self, size_bytes: int) -> bool:
        if size_bytes < self._position:
            return True
        seam = os.pread(self._descriptor, len(self._seam), self._position - len(self._seam))
        return seam != self._seam

    def _start_over(self) -> None:
        self._dropped_entries += self._index.dropped
        self._index = JitIndex(self._entries_max)
        self._position, self._seam = 0, b""
        self.generation += 1

    def _read(self, size_bytes: int) -> None:
        start = self._position
        if size_bytes - start > self._read_limit_bytes:
            # The end is the newest part. A line cut there counts as invalid.
            self._position = size_bytes - self._read_limit_bytes
            self._skipped_bytes += self._position - start
        until = min(size_bytes, self._position + _SLICE_BYTES)
        while self._position < until:
            chunk = os.pread(self._descriptor, min(_CHUNK_BYTES, size_bytes - self._position), self._position)
            whole = chunk[: chunk.rfind(b"\n") + 1]
            if not whole and len(chunk) <= _LINE_LIMIT_BYTES:
                break
            if not whole:
                self._junk_lines += 1
            self._add(whole, self._position)
            self._position += len(whole or chunk)
        if self._position != start:
            self._seam = os.pread(self._descriptor, _SEAM_BYTES, max(0, self._position - _SEAM_BYTES))
            self._seam = self._seam[: min(_SEAM_BYTES, self._position)]
            self.generation += 1

    def _add(self, lines: bytes, offset: int) -> None:
        entries = [(int(m[1], 16), int(m[2], 16), offset + m.start()) for m in _LINE.finditer(lines)]
        self._junk_lines += lines.count(b"\n") - len(entries) + self._index.add(entries)


def jit_name(text: bytes) -> str:
    """The readable name of a method in a perf map, without addresses, of limited length."""
    name = _METHOD_TABLE.sub("", text.strip().decode(errors="surrogateescape"))
    return shortened(printable(name), NAME_LIMIT_CHARACTERS)
