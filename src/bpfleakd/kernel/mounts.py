"""The bpf file system, where pins live, and the tracing file system, where tracepoints are."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from bpfleakd import errors

_BPF_FS_MAGIC = 0xCAFE4A11  # include/uapi/linux/magic.h
BPFFS_MOUNT_POINT = Path("/sys/fs/bpf")
_TRACEFS = Path("/sys/kernel/tracing")


def is_bpffs(path: Path) -> bool:
    """Whether `path`, or the nearest directory above it that exists, lies in a bpf file system."""
    while not path.exists():
        path = path.parent
    return _file_system_type(path) == _BPF_FS_MAGIC


def ensure_bpffs(directory: Path) -> None:
    """Mount bpffs at /sys/fs/bpf if `directory` is below it and nothing is mounted there.

    Raises KernelError if `directory` is then still in another file system.
    """
    if not is_bpffs(directory) and directory.is_relative_to(BPFFS_MOUNT_POINT):
        # The check below reports a failure, with the command to mount it manually.
        subprocess.run(
            ["mount", "-t", "bpf", "bpf", str(BPFFS_MOUNT_POINT)], capture_output=True, check=False
        )
    if not is_bpffs(directory):
        raise errors.KernelError(
            f"{directory} is not in a bpf file system",
            f"mount one (mount -t bpf bpf {BPFFS_MOUNT_POINT}) or set bpffs_dir",
        )


def ensure_tracefs() -> None:
    """Mount tracefs at its usual place if it is missing; its users report a failure."""
    if not (_TRACEFS / "events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(_TRACEFS)], capture_output=True, check=False)


def _file_system_type(path: Path) -> int:
    # os.statvfs omits f_type. struct statfs begins with it, and is 120 bytes long on x86-64.
    buffer = (ctypes.c_long * 32)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        return 0
    return buffer[0]
