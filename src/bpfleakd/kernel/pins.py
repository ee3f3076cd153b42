"""Where bpfleakd pins its objects, and which daemon may use them.

    BPFFS_DIR/                        locked (flock) by the daemon that uses it
      set-HASH/                       programs and maps of one version, complete
        MAP, PROGRAM, …
        links/                        those of all processes: exec, exit, system calls
        traced/PID-START/             one traced process, by pid and start time
          file-N/                     the links to one of its files, or what holds probes that it shares
          RECORD, …                   what the daemon knows of it (blob.py)
      making/                         a set that the loader has not finished

Rules:
  - An entry named `making…` is unfinished: the next daemon removes it. rename(2) gives it its final name.
  - A set is used only by programs of the same hash (loader.version_of). The set of another version is
    removed.
  - Removing a pin releases the object: it ends with its last pin and descriptor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bpfleakd import errors
from bpfleakd.kernel import bpf
from bpfleakd.kernel.blob import Blob
from bpfleakd.kernel.mounts import is_bpffs
from bpfleakd.model.process import ProcessId

MAKING = "making"
_SET = "set-"


def remove_pins(directory: Path) -> int:
    """Remove a directory with all pins in it; returns how many there were. Raises OSError if one remains."""
    removed = 0
    if not directory.is_dir():
        return removed
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            removed += remove_pins(entry)
        else:
            entry.unlink()
            removed += 1
    directory.rmdir()
    return removed


def pinned_sets(directory: Path) -> list[PinnedSet]:
    """The complete sets below a bpffs_dir."""
    if not directory.is_dir():
        return []
    return [PinnedSet(path) for path in sorted(directory.iterdir()) if path.name.startswith(_SET)]


class DirectoryLock:
    """The right to use a bpffs_dir: one daemon at a time has it, and loses it when it ends."""

    def __init__(self, directory: Path) -> None:
        """Create the directory and lock it. Raises AlreadyRunning, or OSError."""
        self.directory = directory
        while True:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous owner of the lock may have removed the directory as it ended.
                if os.path.samestat(os.fstat(self._fd), os.stat(directory)):
                    return
            except BlockingIOError as error:
                os.close(self._fd)
                raise errors.AlreadyRunning(
                    f"another bpfleakd uses {directory}",
                    "stop it (systemctl stop bpfleakd), or set another bpffs_dir and socket",
                ) from error
            except FileNotFoundError:
                pass
            os.close(self._fd)

    def release(self, *, remove: bool) -> None:
        """Release the lock, and `remove` the directory if it is empty."""
        if remove:
            with contextlib.suppress(OSError):
                self.directory.rmdir()
        os.close(self._fd)


class PinnedSet:
    """One set of programs and maps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def of(cls, directory: Path, version: str) -> PinnedSet:
        """The set of a version below a bpffs_dir; it need not exist."""
        return cls(directory / f"{_SET}{version}")

    @property
    def exists(self) -> bool:
        """Whether the set exists, which means that it is complete."""
        return self.directory.is_dir()

    @property
    def is_mounted(self) -> bool:
        """Whether the set still exists, in a bpf file system."""
        return self.exists and is_bpffs(self.directory)

    def record(self, name: str) -> Blob:
        """Bytes that are stored with the set."""
        return Blob(self.directory / name)

    def link(self, name: str) -> int | None:
        """Open a link of all processes; None if it does not exist."""
        try:
            return bpf.object_get(self.directory / "links" / name)
        except FileNotFoundError:
            return None

    def pin_link(self, name: str, fd: int) -> None:
        """Pin a link of all processes."""
        (self.directory / "links").mkdir(exist_ok=True)
        bpf.object_pin(fd, self.directory / "links" / name)

    def unpin_link(self, name: str) -> None:
        """Remove the pin of a link, if it exists."""
        (self.directory / "links" / name).unlink(missing_ok=True)

    def processes(self) -> list[ProcessPins]:
        """The processes with pinned objects."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in sorted((self.directory / "traced").iterdir()):
                pid, _, start_ticks = path.name.partition("-")
                found.append(ProcessPins(path, ProcessId(int(pid), int(start_ticks))))
        return found

    def process(self, id_: ProcessId) -> ProcessPins:
        """The pinned objects of a process, possibly none."""
        return ProcessPins(self.directory / "traced" / f"{id_.pid}-{id_.start_ticks}", id_)

    def remove(self) -> int:
        """Remove the set with everything in it; returns how many pins that were."""
        return remove_pins(self.directory)


class ProcessPins:
    """The pinned objects of one process."""

    def __init__(self, directory: Path, id_: ProcessId) -> None:
        self.directory = directory
        self.id = id_

    def make(self) -> None:
        """Create the empty directory."""
        self.directory.parent.mkdir(exist_ok=True)
        remove_pins(self.directory)
        self.directory.mkdir()

    def record(self, name: str) -> Blob:
        """Bytes that are stored with the process."""
        return Blob(self.directory / name)

    def stage_links(self, number: int, links: Sequence[int]) -> None:
        """Pin the links to a file; they count as incomplete until `commit_links`."""
        staged = self.directory / f"{MAKING}-{number}"
        remove_pins(staged)
        staged.mkdir()
        for index, fd in enumerate(links):
            bpf.object_pin(fd, staged / f"link-{index}")

    def commit_links(self, number: int) -> None:
        """Mark the links to this file as complete."""
        os.rename(self.directory / f"{MAKING}-{number}", self.directory / f"file-{number}")

    def unfinished_links(self) -> set[int]:
        """The numbers of the files whose links are incomplete; `open_links` removes them."""
        names = [path.name for path in self.directory.iterdir()]
        return {int(name.partition("-")[2]) for name in names if name.startswith(f"{MAKING}-")}

    def open_links(self) -> dict[int, list[int]]:
        """Open all links, by the number of their file; removes incomplete ones."""
        opened: dict[int, list[int]] = {}
        for path in sorted(self.directory.iterdir()):
            if path.name.startswith(MAKING):
                remove_pins(path)
            elif path.name.startswith("file-"):
                opened[int(path.name.removeprefix("file-"))] = list(_open_all(path.iterdir()))
        return opened

    def remove_links_to(self, number: int) -> None:
        """Remove the pins of the links to one file."""
        remove_pins(self.directory / f"file-{number}")

    def remove_links(self) -> None:
        """Remove the pins of all links."""
        with contextlib.suppress(FileNotFoundError):
            for path in list(self.directory.iterdir()):
                if path.is_dir():
                    remove_pins(path)

    def remove(self) -> None:
        """Remove all pins of the process."""
        remove_pins(self.directory)


def _open_all(paths: Iterable[Path]) -> Iterator[int]:
    for path in sorted(paths):
        yield bpf.object_get(path)
