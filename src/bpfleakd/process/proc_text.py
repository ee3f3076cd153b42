"""Text files of the kernel, in /proc and in control groups: their fields and numbers.

Only a newline ends a line. Names of processes and of control groups may have any other character, and
`str.splitlines` and text files end a line at some ten of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_NUMBER_FIELD = re.compile(r"^([^:\n]+):[ \t]*([0-9]+)(?=[ \t]|$)", re.MULTILINE)
_READ_BYTES = 1 << 16


def read_text(path: Path | str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    # Dozens are read at a tick, and a file object costs as much again.
    try:
        return b"".join(iter(lambda: os.read(fd, _READ_BYTES), b"")).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def status_fields(directory: Path) -> dict[str, str]:
    """The fields of /proc/PID/status, or of a thread, by the directory. Raises OSError."""
    text = (directory / "status").read_bytes().decode(errors="replace")
    pairs = (line.partition(":") for line in text.split("\n"))
    return {name: value.strip() for name, _colon, value in pairs}


def catches_signal(directory: Path, number: int) -> bool:
    """Whether a process has a handler for a signal. Raises OSError."""
    return bool(int(status_fields(directory).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def whole_number(text: str) -> int | None:
    """Parse a whole number; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def kilobyte_field(text: str, name: str) -> int | None:
    """One of `kilobyte_fields`, in a fraction of the time; None without it."""
    _before, found, rest = f"\n{text}".partition(f"\n{name}:")
    kilobytes = whole_number(rest.partition("\n")[0].removesuffix(" kB")) if found else None
    return None if kilobytes is None else kilobytes * 1024


def kilobyte_fields(text: str) -> dict[str, int]:
    """The fields of /proc/PID/status or /proc/meminfo, in bytes; each line is `Name: 23 kB`."""
    return {name: int(number) * 1024 for name, number in _NUMBER_FIELD.findall(text)}
