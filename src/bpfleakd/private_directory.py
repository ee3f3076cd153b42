"""A directory of files that other users could not have written: caches that save time between runs.

Rules:
- The directory, every directory above it and each file belong to a trusted user, and no other user may write
  them (but in a sticky directory, such as /tmp, make entries beside ours). A symbolic link is followed only
  if a trusted user put it above the directory; anything else is refused with a ValueError.
- A file exists completely or not at all. Unfinished files of a killed daemon are listed like the files
  themselves, and removed with them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TEMPORARY = "-tmp"


# As many as the kernel follows in a path (MAXSYMLINKS).
_LINKS_MAX = 40


def make_private(path: Path, owners: Collection[int]) -> None:
    """Make the directory `path` and those above it where they are missing, with the mode 0700.

    Raises OSError, and ValueError for a path that another user could have made or could replace.
    """
    existing = path
    while not os.path.lexists(existing):
        existing = existing.parent
    refuse_foreign_path(existing, owners)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    refuse_foreign_path(path, owners)


def refuse_foreign_path(path: Path, owners: Collection[int]) -> None:
    """Raise ValueError unless only `owners` decide what directory `path` is, OSError if it is unknown."""
    trusted = {0, *owners}
    pending, reached, links = list(reversed(path.absolute().parts[1:])), Path("/"), 0
    _refuse_others_directory(reached, reached.lstat(), trusted)
    while pending:
        name = pending.pop()
        if name == "..":
            reached = reached.parent
            continue
        status = (reached / name).lstat()
        if not stat.S_ISLNK(status.st_mode):
            reached /= name
            _refuse_others_directory(reached, status, trusted)
            continue
        links += 1
        if not pending or status.st_uid not in trusted or links > _LINKS_MAX:
            raise ValueError(f"{reached / name} is a symbolic link: use its target")
        target = Path(os.readlink(reached / name))
        pending += reversed(target.parts[target.is_absolute() :])
        reached = Path("/") if target.is_absolute() else reached


def _refuse_others_directory(path: Path, status: os.stat_result, trusted: Collection[int]) -> None:
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is not a directory")
    if status.st_uid not in trusted or others_write:
        raise ValueError(f"{path} belongs to another user, or others can write it: chown root, chmod go-w")


class PrivateDirectory:
    """The directory `path`, made when something is first written; `owners` are the user ids to trust.

    Every method raises OSError, and ValueError for a file that another user could have written.
    """

    def __init__(self, path: Path, owners: Collection[int]) -> None:
        self.path = path
        self._owners = owners

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return a file, which counts as used from now on. Raises FileNotFoundError if it does not exist."""
        with self._opened() as directory_fd:
            descriptor = os.open(name, os.O_RDONLY | _OPEN_FLAGS, dir_fd=directory_fd)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(file.fileno())
                self._refuse_foreign(status)
                if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
                    raise ValueError("not a regular file of a plausible size")
                content = file.read(status.st_size)
                with suppress(OSError):
                    os.utime(file.fileno())
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file, in place of what was there. Its name has a suffix."""
        make_private(self.path, self._owners)
        temporary = f"{os.urandom(8).hex()}{Path(name).suffix}{_TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FLAGS
        with self._opened() as directory_fd:
            try:
                with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=directory_fd), "wb") as file:
                    file.write(content)
                # Without fsync: readers have to notice what a power cut tears.
                os.replace(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=directory_fd)
                raise

    def longest_unused_first(self, suffix: str) -> list[tuple[str, int]]:
        """Return name and size in bytes of each file whose name ends so."""
        with self._opened() as directory_fd, os.scandir(directory_fd) as found:
            ours = [entry for entry in found if entry.name.endswith((suffix, suffix + _TEMPORARY))]
            aged = sorted(
                (s.st_mtime_ns, entry.name, s.st_size) for entry in ours if (s := _status_of(entry))
            )
        return [(name, size_bytes) for _, name, size_bytes in aged]

    def remove(self, name: str) -> None:
        """Remove a file."""
        with self._opened() as directory_fd:
            os.unlink(name, dir_fd=directory_fd)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        refuse_foreign_path(self.path, self._owners)
        directory_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | _OPEN_FLAGS)
        try:
            self._refuse_foreign(os.fstat(directory_fd))
            yield directory_fd
        finally:
            os.close(directory_fd)

    def _refuse_foreign(self, status: os.stat_result) -> None:
        if status.st_uid not in self._owners or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ValueError("other users can write it")


def _status_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
