"""A control group with a memory limit, made by a test and removed with all that runs in it."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .waiting import wait_until

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


class MemoryCgroup:
    """A group below the root of the hierarchy that has the memory controller here, v1 or v2."""

    def __init__(self, limit_bytes: int) -> None:
        self.version = 1 if (_V1 / "memory.limit_in_bytes").exists() else 2
        root = _V1 if self.version == 1 else _V2
        if self.version == 2 and "memory" not in _words(root / "cgroup.subtree_control"):
            pytest.skip("groups with a memory limit need the memory controller: cgroup.subtree_control")
        self.directory = root / f"bpfleakd-test-{uuid.uuid4().hex[:8]}"
        self.directory.mkdir()
        self._write({1: "memory.limit_in_bytes", 2: "memory.max"}[self.version], limit_bytes)
        # Memory over the limit must lead to a kill, not to swapping.
        with contextlib.suppress(OSError):
            self._write({1: "memory.swappiness", 2: "memory.swap.max"}[self.version], 0)

    @property
    def name(self) -> str:
        return f"/{self.directory.name}"

    @property
    def used_bytes(self) -> int:
        name = {1: "memory.usage_in_bytes", 2: "memory.current"}[self.version]
        return int((self.directory / name).read_text())

    def add(self, pid: int) -> None:
        """Charge what the process allocates from now on to the group."""
        self._write("cgroup.procs", pid)

    def release(self, pid: int) -> None:
        """Charge what the process allocates from now on to the root group."""
        (self.directory.parent / "cgroup.procs").write_text(f"{pid}\n")

    def remove(self) -> None:
        """End the processes in it, and remove it."""
        for pid in _words(self.directory / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        wait_until(self._is_removed)

    def _is_removed(self) -> bool:
        try:
            self.directory.rmdir()
        except OSError:
            return False
        return True

    def _write(self, name: str, value: int) -> None:
        (self.directory / name).write_text(f"{value}\n")


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """A group for the time of a context."""
    group = MemoryCgroup(limit_bytes)
    try:
        yield group
    finally:
        group.remove()


def _words(path: Path) -> list[str]:
    return path.read_text().split()
