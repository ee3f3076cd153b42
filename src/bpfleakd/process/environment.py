"""The initial environment of a process, which it may overwrite."""

from __future__ import annotations

from pathlib import Path

from bpfleakd.process.reading.reads import read_file

_LIMIT_BYTES = 1 << 20


def read_environment(pid: int, proc: Path = Path("/proc")) -> dict[bytes, bytes]:
    """The variables of a process; empty if they cannot be read."""
    try:
        words = read_file(pid, proc / str(pid) / "environ", _LIMIT_BYTES).split(b"\0")
    except OSError:
        return {}
    pairs = (word.partition(b"=") for word in words)
    return {name: value for name, _equals, value in pairs}
