"""Which devices are memory, by the mounts of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from bpfleakd.model.address_space import MappingUsage
from bpfleakd.process.files.memory_file_systems import memory_devices

from ..analysis.usages import a_usage

MOUNTS = """\
22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
25 28 0:291 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=4000k
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 28 0:33 / /mnt/tmpfs rw - fuse.x tmpfs rw
34 28 0:19 / /dev/hugepages rw shared:9 - hugetlbfs hugetlbfs rw
what - tmpfs
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "mountinfo").write_text(MOUNTS)
    return tmp_path


def mapped(path: str = "/run/cache", *, shared: bool = True, device: str = "00:123") -> MappingUsage:
    usage = a_usage(path=path, shared=shared)
    return replace(usage, mapping=replace(usage.mapping, device=device))


def test_the_types_tell(proc: Path) -> None:
    """As /proc/PID/maps writes devices: 291 is 0x123."""
    assert memory_devices(4711, [mapped()], proc) == {"00:123", "00:13"}


def test_mounts_are_read_only_where_they_matter(proc: Path) -> None:
    """Private mappings, mappings of disks and memory without a path do not."""
    usages = [mapped(shared=False), mapped(device="fe:00"), mapped(path="")]
    assert memory_devices(4711, usages, proc) == frozenset()
    assert memory_devices(29, [mapped()], proc) == frozenset()
