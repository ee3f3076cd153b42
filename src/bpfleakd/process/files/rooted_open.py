"""Opens files below a root directory that another user controls.

Rules:
- Links are followed inside the root only, and those of /proc (magic links) not at all: openat2(2), Linux 5.6.
- Only regular files are opened. A pipe could block the daemon and a device could do anything, so the type is
  checked (O_PATH) before the file is opened.
- What a process has mounted below its root may be of a server that never answers. So `TargetRoot` looks names
  up in another process (reading/), and returns only what is of a file system that answers. `open_below` may
  wait: it is for paths of our own, and for threads that may wait.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from msgspec import Struct

from bpfleakd.process.files.local_devices import LocalDevices, is_kernels_own
from bpfleakd.process.reading.reads import reads
from bpfleakd.process.reading.server import open_in_root

_PROC = Path("/proc")
_PATH_MAX_BYTES = 4096

_devices = LocalDevices()


class TargetRoot(Struct, frozen=True):
    """The root directory of process `pid`; `directory` is /proc/PID/root.

    All methods raise OSError: TimeoutError if the process keeps its readers waiting, ENODEV for a file system
    whose server may do that later.
    """

    pid: int
    directory: Path

    @property
    def path(self) -> str:
        """How /proc names it: `/`, unless the process called chroot, or has ended."""
        try:
            return os.readlink(self.directory)
        except OSError:
            return "/"

    def open_handle(self, path: str | PurePosixPath, *, follow: bool = True) -> int:
        """A handle (O_PATH) of the object with this path; a link only if `follow` is false."""
        if len(os.fsencode(str(path))) > _PATH_MAX_BYTES:
            raise OSError(errno.ENAMETOOLONG, "a path that is too long")
        flags = os.O_PATH | (0 if follow else os.O_NOFOLLOW)
        handle, kind, device = reads().open_below(self.pid, str(self.directory), str(path), flags)
        if is_kernels_own(kind) or device in _devices:
            return handle
        os.close(handle)
        raise OSError(
            errno.ENODEV,
            "it is on a file system that may not answer (FUSE, NFS, an overlay of another mount namespace)",
            str(path),
        )

    def open_regular(self, path: str | PurePosixPath, *, follow: bool = True) -> int:
        """Open a regular file for reading."""
        handle = self.open_handle(path, follow=follow)
        try:
            return reopen_regular(handle)
        finally:
            os.close(handle)

    def open_writable_directory(self, path: str | PurePosixPath, uid: int) -> int:
        """A handle of a directory, to create files in it for a user.

        The user may have mounted any directory of the host at this path, in a private namespace. So this
        refuses it unless the user could create the files.
        """
        directory = self.open_handle(path)
        status = os.fstat(directory)
        is_writable = uid in (0, status.st_uid) or bool(status.st_mode & stat.S_IWOTH)
        if stat.S_ISDIR(status.st_mode) and is_writable:
            return directory
        os.close(directory)
        raise PermissionError(errno.EACCES, "its user may not write there", str(path))


def seen_path(path: str, root_path: str) -> str:
    """The path of a file as a process sees it. /proc names it with the path of its root before it."""
    inside = path.removeprefix(root_path.rstrip("/"))
    return inside if inside.startswith("/") else path


def root_of(pid: int, proc: Path = _PROC) -> TargetRoot:
    """The root directory of a process."""
    return TargetRoot(pid, proc / str(pid) / "root")


def open_below(root: str | os.PathLike[str], path: str | PurePosixPath) -> int:
    """Open a regular file by its path below `root` for reading; returns the descriptor. Raises OSError."""
    handle = open_in_root(root, os.fsencode(str(path)), os.O_PATH)
    try:
        return reopen_regular(handle)
    finally:
        os.close(handle)


def reopen_regular(handle: int) -> int:
    """Open the object of an O_PATH descriptor for reading.

    Raises OSError, EINVAL unless it is a regular file.
    """
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise OSError(22, "is not a regular file")
    return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
