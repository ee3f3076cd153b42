"""The appended part of a perf map: names and sizes of methods compiled after a certain time.

The rules of perf_map.py for a file that another user writes apply here too; nothing of it is stored.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath

from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.symbols.perf_map import NAME_LIMIT_CHARACTERS, jit_name

# Bytes per reading, the newest ones if there are more.
READ_LIMIT_BYTES = 16 << 20

# As many bytes of a name as PerfMap reads.
_LINE = re.compile(
    rb"^(?:0x)?[0-9a-fA-F]{1,16} +(?:0x)?0{0,8}([0-9a-fA-F]{1,8}) +([^\n]{1,%d})"
    % (4 * NAME_LIMIT_CHARACTERS),
    re.MULTILINE,
)
_SEAM_BYTES = 64
_LINE_LIMIT_BYTES = 64 << 10


class PerfMapTail:
    """The perf map of one process from now on.

    `path`, `owner_uid` and `root` are as for PerfMap. A file that is rewritten instead of appended to
    (OpenJDK does that) is read from its start, all of it as new. `skipped_bytes` were beyond the limit of one
    reading; `refused`: the file is not trusted.
    """

    def __init__(
        self,
        path: PurePosixPath,
        owner_uid: int,
        root: TargetRoot,
        *,
        read_limit_bytes: int = READ_LIMIT_BYTES,
    ) -> None:
        self.skipped_bytes = 0
        self.refused = False
        self._root, self._path = root, path
        self._owners = (owner_uid, 0)
        self._read_limit_bytes = read_limit_bytes
        self._identity: tuple[int, int] | None = None
        self._position = 0
        self._seam = b""
        self._rewritten = False
        self._begin_at_the_end()

    def read(self) -> list[tuple[str, int]]:
        """The methods written since the last time, oldest first: readable names, and sizes."""
        descriptor = self._open()
        if descriptor is None:
            return []
        try:
            return self._read(descriptor)
        except OSError:
            return []
        finally:
            os.close(descriptor)

    def take_rewritten(self) -> bool:
        """Whether `read` started over with a new file since the last call."""
        rewritten, self._rewritten = self._rewritten, False
        return rewritten

    def _begin_at_the_end(self) -> None:
        descriptor = self._open()
        if descriptor is None:
            return
        try:
            size_bytes = os.fstat(descriptor).st_size
            start = max(0, size_bytes - _LINE_LIMIT_BYTES)
            end = os.pread(descriptor, size_bytes - start, start)
            # A line that is still being written counts as new.
            self._move_to(descriptor, start + end.rfind(b"\n") + 1 if b"\n" in end else size_bytes)
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _open(self) -> int | None:
        try:
            descriptor = self._root.open_regular(self._path, follow=False)
        except OSError as error:
            # EINVAL is not a regular file; most processes have no map.
            self.refused = not isinstance(error, FileNotFoundError | ProcessLookupError | TimeoutError)
            return None
        self.refused = os.fstat(descriptor).st_uid not in self._owners
        if self.refused:
            os.close(descriptor)
            return None
        return descriptor

    def _read(self, descriptor: int) -> list[tuple[str, int]]:
        status = os.fstat(descriptor)
        if self._identity is None:
            self._identity = (status.st_dev, status.st_ino)
        elif self._is_another(descriptor, status):
            self._rewritten = True
            self._identity, self._position = (status.st_dev, status.st_ino), 0
        start = max(self._position, status.st_size - self._read_limit_bytes)
        data = os.pread(descriptor, status.st_size - start, start)
        if start > self._position:
            # The cut line is skipped.
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
            self.skipped_bytes += start - self._position
        whole = data[: data.rfind(b"\n") + 1]
        # A line that does not end within the limit is invalid, not unfinished.
        taken = data if len(data) - len(whole) > _LINE_LIMIT_BYTES else whole
        self._move_to(descriptor, start + len(taken))
        return [(jit_name(match[2]), int(match[1], 16)) for match in _LINE.finditer(whole)]

    def _is_another(self, descriptor: int, status: os.stat_result) -> bool:
        if self._identity != (status.st_dev, status.st_ino) or status.st_size < self._position:
            return True
        return os.pread(descriptor, len(self._seam), self._position - len(self._seam)) != self._seam

    def _move_to(self, descriptor: int, position: int) -> None:
        status = os.fstat(descriptor)
        self._identity, self._position = (status.st_dev, status.st_ino), position
        seam_start = max(0, position - _SEAM_BYTES)
        self._seam = os.pread(descriptor, position - seam_start, seam_start)
