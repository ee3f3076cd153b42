"""Which file systems only root of this machine decides about, known by their device number.

A file that belongs to root, and that only root may write, is trustworthy only if the file system tells the
truth. FUSE servers and remote servers may lie, and so may an overlay over one of these that an unprivileged
user has mounted in a separate namespace. So a device counts if it is mounted in our own mount namespace with
a type of this list. Device numbers are reused: the list is read again after every mount or unmount, which the
kernel reports by poll(2) on mountinfo (proc_pid_mountinfo(5)).
"""

from __future__ import annotations

import os
import select

__all__ = ["LocalDevices", "device_number", "is_kernels_own"]

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

# File systems of the kernel's own, in any mount namespace (linux/magic.h). An overlay may lie over FUSE.
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
    """The device numbers, as of now."""

    def __init__(self, mountinfo: str = "/proc/self/mountinfo") -> None:
        self._path = mountinfo
        self._fd = -1
        self._devices: frozenset[int] = frozenset()

    def __contains__(self, device: int) -> bool:
        if self._fd < 0 or self._has_changed():
            self._read()
        return device in self._devices

    def _has_changed(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLERR | select.POLLPRI)
        return bool(poll.poll(0))

    def _read(self) -> None:
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        os.lseek(self._fd, 0, os.SEEK_SET)
        parts = []
        while part := os.read(self._fd, 1 << 16):
            parts.append(part)
        lines = b"".join(parts).decode(errors="surrogateescape").splitlines()
        self._devices = frozenset(device for line in lines if (device := _local_device(line)) is not None)


def is_kernels_own(kind: int) -> bool:
    """Whether a file system of this type (statfs(2)) always answers, whoever has mounted it."""
    return kind in _KERNELS_OWN


def device_number(device: str) -> int:
    """Parse the two hexadecimal numbers in /proc/PID/maps; -1 for anything else."""
    major, _, minor = device.partition(":")
    try:
        return os.makedev(int(major, 16), int(minor, 16))
    except ValueError:
        return -1


def _local_device(line: str) -> int | None:
    """36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"""
    fields, _, rest = line.partition(" - ")
    if rest.partition(" ")[0] not in _TYPES:
        return None
    try:
        major, minor = fields.split(" ", 3)[2].split(":")
        return os.makedev(int(major), int(minor))
    except (IndexError, ValueError):
        return None
