"""Finds debug files for mapped files, and decides which of them to trust.

Rules:
- Only debug files that only root of this machine could have written, below our own root directory, serve all
  processes.
- Files below a process' own root directory, in a container for instance, serve that process alone.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from bpfleakd.elf.debug_files import find_debug_file
from bpfleakd.elf.image import ElfImage
from bpfleakd.process.files.mapped_files import open_of_root
from bpfleakd.process.files.rooted_open import TargetRoot, root_of, seen_path


def has_our_root(pid: int) -> bool:
    """Whether a process sees the same file systems as the daemon; False if that is unknown."""
    try:
        mount_namespaces = (os.stat(f"/proc/{process}/ns/mnt") for process in (pid, "self"))
        if len({(s.st_dev, s.st_ino) for s in mount_namespaces}) != 1:
            return False
        handle = root_of(pid).open_handle(".")
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(handle), os.stat("/"))
    finally:
        os.close(handle)


def debug_file_for_all(image: ElfImage, path: str) -> ElfImage | None:
    """The debug file of an image that may serve every process; `path` is the process' view."""
    return find_debug_file(image, path, _open_for_all)


def debug_file_in_root(image: ElfImage, path: str, root: TargetRoot) -> ElfImage | None:
    """The debug file of an image below the process' own `root`, for that process alone."""
    return find_debug_file(image, seen_path(path, root.path), root.open_regular)


def _open_for_all(candidate: PurePosixPath) -> int:
    opened = open_of_root(str(candidate))
    if opened is None:
        raise FileNotFoundError(2, "no file of root", str(candidate))
    return os.dup(opened.descriptor)
