"""Opening files as those of a process."""

from __future__ import annotations

import os
from pathlib import Path

from bpfleakd.process.files.mapped_files import OpenedFile


def open_file(path: Path, owner: str = "me") -> OpenedFile:
    """Open a file that the process `owner` is to have mapped. Raises OSError."""
    return OpenedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), owner)
