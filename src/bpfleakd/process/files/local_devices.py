"""Finds the file systems that only root of this machine controls, by device number.

A file that belongs to root, and that only root may write, is trustworthy only if its file system is. FUSE
servers and remote servers may lie, and so may an overlay over one of these that an unprivileged user has
mounted in a separate namespace. So a device counts if it is mounted with a type of this list in the daemon's
mount namespace, or in that of process 1: a daemon in a container does not see the overlays of other
containers in its own, and the mounts of the machine's init belong to root, too. Device numbers are reused:
the lists are read again after every mount or unmount, which the kernel reports by poll(2) on mountinfo
(proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Container, Sequence

_MOUNTS = ("/proc/self/mountinfo", "/proc/1/mountinfo")
_TYPES = frozenset(
    (
        "ext2",
        "ext3",
        "ext4",
        "xfs",
        "btrfs",
        "f2fs",
        "zfs",
        "bcachefs",
        "overlay",
        "squashfs",
        "erofs",
        "tmpfs",
    )
)

# File systems implemented by the kernel, in any mount namespace (linux/magic.h). An overlay may be based on
# FUSE.
_KERNELS_OWN = frozenset(
    (
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # xfs
        0x9123683E,  # btrfs
        0xF2F52010,  # f2fs
        0x2FC12FC1,  # zfs
        0xCA451A4E,  # bcachefs
        0x01021994,  # tmpfs
        0x73717368,  # squashfs
        0xE0F5E1E2,  # erofs
    )
)


class LocalDevices:
    """The current device numbers. Lists of mounts that cannot be read count as empty."""

    def __init__(self, mounts: Sequence[str] = _MOUNTS) -> None:
        self._paths = mounts
        self._fds: list[int] | None = None
        self._devices: frozenset[int] = frozenset()

    def __contains__(self, device: int) -> bool:
        if self._fds is None or self._has_changed(self._fds):
            self._read()
        return device in self._devices

    @staticmethod
    def _has_changed(fds: Sequence[int]) -> bool:
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLERR | select.POLLPRI)
        return bool(poll.poll(0))

    def _read(self) -> None:
        if self._fds is None:
            self._fds = []
            for path in self._paths:
                with contextlib.suppress(OSError):
                    self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        lines = [line for fd in self._fds for line in _lines(fd)]
        found = (mounted_device(line, _TYPES) for line in lines)
        self._devices = frozenset(os.makedev(*device) for device in found if device is not None)


def _lines(fd: int) -> list[str]:
    os.lseek(fd, 0, os.SEEK_SET)
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode(errors="surrogateescape").splitlines()


def is_kernels_own(kind: int) -> bool:
    """Whether a file system of this type (statfs(2)) always answers, no matter which user mounted it."""
    return kind in _KERNELS_OWN


def device_number(device: str) -> int:
    """Parse the two hexadecimal numbers in /proc/PID/maps; -1 for anything else."""
    major, _, minor = device.partition(":")
    try:
        return os.makedev(int(major, 16), int(minor, 16))
    except ValueError:
        return -1


def mounted_device(line: str, types: Container[str]) -> tuple[int, int] | None:
    """The device in a line of mountinfo, (major, minor), if its file system has one of these types.

    36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    """
    fields, _, rest = line.partition(" - ")
    if rest.partition(" ")[0] not in types:
        return None
    try:
        major, minor = map(int, fields.split(" ", 3)[2].split(":"))
        return major, minor
    except (IndexError, ValueError):
        return None
