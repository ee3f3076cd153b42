"""The mounted file systems of a process whose files are only memory: tmpfs and hugetlbfs.

Their device numbers do not identify their type; the table of mounts does (proc_pid_mountinfo(5)). A file
system that the process has unmounted is missing from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bpfleakd.model.address_space import MappingUsage
from bpfleakd.process.files.local_devices import mounted_device
from bpfleakd.process.reading.reads import read_file

PROC = Path("/proc")
_TYPES = frozenset(("tmpfs", "ramfs", "hugetlbfs"))
# A process may have any number of mounts: this is some 100,000.
_BYTES_MAX = 8 << 20
# The major number of file systems without a device.
_NO_DEVICE = "00:"


def memory_devices(pid: int, usages: Iterable[MappingUsage], proc: Path = PROC) -> frozenset[str]:
    """The devices of such file systems, as in /proc/PID/maps, if one of these mappings may belong to one."""
    if not any(
        usage.shared and usage.mapping.device.startswith(_NO_DEVICE) and usage.mapping.path.startswith("/")
        for usage in usages
    ):
        return frozenset()
    try:
        mounts = read_file(pid, proc / str(pid) / "mountinfo", _BYTES_MAX)
    except OSError:
        return frozenset()
    lines = mounts.decode(errors="surrogateescape").split("\n")
    found = (mounted_device(line, _TYPES) for line in lines)
    return frozenset("{:02x}:{:02x}".format(*device) for device in found if device is not None)
