"""Text files of the kernel, in /proc and in control groups: their fields and numbers."""

from __future__ import annotations

from pathlib import Path

__all__ = ["kilobyte_fields", "read_text", "whole_number"]


def read_text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def whole_number(text: str) -> int | None:
    """Parse a whole number; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def kilobyte_fields(text: str) -> dict[str, int]:
    """The fields of /proc/PID/status or /proc/meminfo, in bytes; each line is `Name: 23 kB`."""
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number = whole_number(value.split()[0]) if value.split() else None
        if number is not None:
            fields[name] = number * 1024
    return fields
