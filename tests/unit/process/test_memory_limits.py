"""Limits of memory, from made-up files and from this process' own."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from bpfleakd.model.limit import MemoryLimit, MemoryLimitKind
from bpfleakd.process.memory_limits import MemoryLimitReader

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max data size             2000000              unlimited            bytes
Max address space         unlimited            unlimited            bytes
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with process 7, that has 1,000 kB of data, and a machine of 16,000 kB."""
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "status").write_text("Name:\tx\nVmSize:\t 4000 kB\nVmData:\t 1000 kB\n")
    (process / "limits").write_text(LIMITS)
    (process / "cgroup").write_text("0::/system.slice/shop.service\n")
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 16000 kB\nMemAvailable: 6000 kB\n")
    return tmp_path / "proc"


def a_group(path: Path, limit: str, used: int, inactive: int, version: int = 2) -> None:
    path.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (path / names[0]).write_text(f"{limit}\n")
    (path / names[1]).write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 5\n{names[2]} {inactive}\n")


def test_the_groups_around_it_count(proc: Path, tmp_path: Path) -> None:
    """The one with the least room comes first; inactive page cache is room."""
    groups = tmp_path / "cgroup"
    a_group(groups / "system.slice" / "shop.service", "max", 500, 0)
    a_group(groups / "system.slice", "900", 700, 300)
    limits = MemoryLimitReader(proc, groups).read(7)
    assert limits == (
        MemoryLimit(MemoryLimitKind.CGROUP, 900, 400),
        MemoryLimit(MemoryLimitKind.DATA, 2_000_000, 1_024_000),
        MemoryLimit(MemoryLimitKind.HOST, 16_384_000, 10_240_000),
    )
    assert MemoryLimitReader(proc, groups).room_bytes(7) == 500


def test_what_processes_share_is_read_once(proc: Path, tmp_path: Path) -> None:
    """For them it is one moment; another reader sees the next."""
    group = tmp_path / "cgroup" / "shop"
    a_group(group, "900", 700, 0)
    for pid in ("7", "8"):
        (proc / pid).mkdir(exist_ok=True)
        (proc / pid / "cgroup").write_text("0::/shop\n")
    reader = MemoryLimitReader(proc, tmp_path / "cgroup")
    first = reader.read(7)
    (group / "memory.current").write_text("800\n")
    (proc / "meminfo").write_text("MemTotal: 16000 kB\nMemAvailable: 5000 kB\n")

    group_limit = MemoryLimit(MemoryLimitKind.CGROUP, 900, 700)
    assert set(reader.read(8)) == {group_limit, MemoryLimit(MemoryLimitKind.HOST, 16_384_000, 10_240_000)}
    assert set(reader.read(8)) < set(first)
    next_reader = MemoryLimitReader(proc, tmp_path / "cgroup")
    assert MemoryLimit(MemoryLimitKind.CGROUP, 900, 800) in next_reader.read(7)


def test_the_first_version_of_groups(proc: Path, tmp_path: Path) -> None:
    """Its root has a limit so large that it is none."""
    groups = tmp_path / "cgroup"
    (proc / "7" / "cgroup").write_text("9:cpu:/other\n8:name=systemd:/x\n4:hugetlb,memory:/shop\n")
    a_group(groups / "memory" / "shop", "900", 700, 100, version=1)
    a_group(groups / "memory", str(0x7FFFFFFFFFFFF000), 700, 100, version=1)
    limits = MemoryLimitReader(proc, groups).read(7)
    cgroup = [limit for limit in limits if limit.kind is MemoryLimitKind.CGROUP]
    assert cgroup == [MemoryLimit(MemoryLimitKind.CGROUP, 900, 600)]


@pytest.mark.parametrize("line", ["0::/../other", "0::", "nonsense", "0::/gone"])
def test_what_cannot_be_read_is_left_out(line: str, proc: Path, tmp_path: Path) -> None:
    """Groups outside of the daemon's namespace, and those that have just gone; all files may be missing."""
    (proc / "7" / "cgroup").write_text(f"{line}\n")
    kinds = [limit.kind for limit in MemoryLimitReader(proc, tmp_path / "cgroup").read(7)]
    assert kinds == [MemoryLimitKind.DATA, MemoryLimitKind.HOST]
    nowhere = MemoryLimitReader(tmp_path / "nowhere", tmp_path / "nowhere")
    assert nowhere.read(8) == ()
    assert nowhere.room_bytes(8) == 0


def test_the_real_ones_of_this_process() -> None:
    """The machine's is there; RLIMIT_AS only if it is set."""
    kinds = {limit.kind for limit in MemoryLimitReader().read(os.getpid())}
    assert MemoryLimitKind.HOST in kinds
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    assert (MemoryLimitKind.ADDRESS_SPACE in kinds) == is_limited
