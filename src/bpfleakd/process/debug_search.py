"""Debug files for the files that a process maps, and which of them to trust.

Rules:
- Only debug files that only root of this machine could have written, below our own root directory, serve all
  processes.
- Files below a process' own root directory, in a container for instance, serve that process alone.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from bpfleakd.elf.debug_files import find_debug_file
from bpfleakd.elf.image import ElfImage
from bpfleakd.process.mapped_files import open_of_root
from bpfleakd.process.rooted_open import open_below

__all__ = ["debug_file_for_all", "debug_file_in_root", "has_our_root", "root_of"]


def root_of(pid: int) -> Path:
    """A path to the root directory of a process."""
    return Path(f"/proc/{pid}/root")


def has_our_root(pid: int) -> bool:
    """Whether a process sees the same file systems as we do; False if that is unknown."""
    try:
        mount_namespaces = (os.stat(f"/proc/{process}/ns/mnt") for process in (pid, "self"))
        return len({(s.st_dev, s.st_ino) for s in mount_namespaces}) == 1 and root_of(pid).samefile("/")
    except OSError:
        return False


def debug_file_for_all(image: ElfImage, path: str) -> ElfImage | None:
    """The debug file of an image that every process may be shown; `path` as the process sees it."""
    return find_debug_file(image, path, _open_for_all)


def debug_file_in_root(image: ElfImage, path: str, root: Path) -> ElfImage | None:
    """The debug file that a process brings along below `root`, for it alone."""
    return find_debug_file(image, path, lambda candidate: open_below(root, candidate))


def _open_for_all(candidate: PurePosixPath) -> int:
    opened = open_of_root(str(candidate))
    if opened is None:
        raise FileNotFoundError(2, "no file of root", str(candidate))
    return os.dup(opened.descriptor)
