"""What control groups are charged for, from files in the kernel's format."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfleakd.model.container import ContainerKind, GroupMemory
from bpfleakd.process.memory_groups import GroupReader, read_group_memory, read_process_parts

NO_LIMIT_V1 = 0x7FFFFFFFFFFFF000

# Linux 6.1 and later; without the fields that are not memory.
STAT_V2 = """\
anon 40000000
file 30000000
kernel 9000000
kernel_stack 1000000
pagetables 900000
sec_pagetables 100000
percpu 200000
sock 50000
vmalloc 300000
shmem 7000000
zswap 0
swapcached 1000000
file_mapped 20000000
inactive_file 11000000
slab_reclaimable 4000000
slab_unreclaimable 1500000
slab 5500000
pgfault 4711
"""
STAT_V1 = """\
cache 1
rss 1
total_cache 30000000
total_rss 40000000
total_shmem 7000000
total_swapcached 1000000
total_inactive_file 11000000
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc with process 7, in the group /shop/worker of both versions."""
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "cgroup").write_text("4:memory:/shop/worker\n0::/shop/worker\n")
    (process / "status").write_text(
        "Name:\tx\nVmPTE:\t      88 kB\nRssAnon:\t    3000 kB\nRssFile:\t    2000 kB\nRssShmem:\t  5 kB\n"
    )
    return tmp_path / "proc"


def write(directory: Path, **files: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(f"{text}\n")


def read(proc: Path, cgroup: Path) -> GroupMemory:
    group = GroupReader(proc, cgroup).narrowest(7)
    assert group is not None
    return read_group_memory(group)


def test_version_2_tells_kernel_memory_by_kind(proc: Path, tmp_path: Path) -> None:
    """The rest of "kernel" has no name; tmpfs and the swap cache are not page cache."""
    cgroup = tmp_path / "cgroup"
    write(cgroup / "shop" / "worker", memory__max="max", memory__current=80_000_000, memory__stat=STAT_V2)
    write(cgroup / "shop", memory__max=90_000_000, memory__current=80_000_000, memory__stat=STAT_V2)
    assert read(proc, cgroup) == GroupMemory(
        "/shop",
        2,
        90_000_000,
        80_000_000,
        {
            ContainerKind.ANON: 40_000_000,
            ContainerKind.FILE: 22_000_000,
            ContainerKind.SHMEM: 7_000_000,
            ContainerKind.SLAB: 5_500_000,
            ContainerKind.SOCK: 50_000,
            ContainerKind.KERNEL_STACK: 1_000_000,
            ContainerKind.PAGE_TABLES: 1_000_000,
            ContainerKind.PERCPU: 200_000,
            ContainerKind.VMALLOC: 300_000,
            ContainerKind.KERNEL: 1_000_000,
        },
    )


def test_before_linux_5_18_the_rest_of_the_kernel_is_not_told(proc: Path, tmp_path: Path) -> None:
    """The field "kernel" does not exist there."""
    stat = STAT_V2.replace("kernel 9000000\n", "")
    write(tmp_path / "shop" / "worker", memory__max=1 << 30, memory__current=80_000_000, memory__stat=stat)
    assert ContainerKind.KERNEL not in read(proc, tmp_path).parts


def test_version_1_has_one_figure_for_the_kernel(proc: Path, tmp_path: Path) -> None:
    """And its own names for sums over all groups below."""
    write(
        tmp_path / "memory" / "shop" / "worker",
        memory__limit_in_bytes=90_000_000,
        memory__usage_in_bytes=80_000_000,
        memory__kmem__usage_in_bytes=9_000_000,
        memory__stat=STAT_V1,
    )
    write(
        tmp_path / "memory",
        memory__limit_in_bytes=NO_LIMIT_V1,
        memory__usage_in_bytes=80_000_000,
        memory__stat=STAT_V1,
    )
    found = read(proc, tmp_path)
    assert (found.cgroup, found.version) == ("/shop/worker", 1)
    assert found.parts == {
        ContainerKind.ANON: 40_000_000,
        ContainerKind.FILE: 22_000_000,
        ContainerKind.SHMEM: 7_000_000,
        ContainerKind.KERNEL: 9_000_000,
    }


def test_the_group_with_the_least_room_counts(proc: Path, tmp_path: Path) -> None:
    """Inactive page cache counts as room: the inner group is fuller, but the outer one is nearer to its
    limit.
    """
    write(
        tmp_path / "shop" / "worker", memory__max=81_000_000, memory__current=80_000_000, memory__stat=STAT_V2
    )
    write(tmp_path / "shop", memory__max=85_000_000, memory__current=84_000_000, memory__stat="")
    group = GroupReader(proc, tmp_path).narrowest(7)
    assert group is not None
    assert (group.cgroup, group.room_bytes) == ("/shop", 1_000_000)


@pytest.mark.parametrize("depth", [1, 200])
def test_groups_may_be_nested_deep(proc: Path, tmp_path: Path, depth: int) -> None:
    """Also deeper than what is remembered from one reading to the next."""
    root, path = tmp_path / "cgroup", "/inner" * depth
    (proc / "7" / "cgroup").write_text(f"0::{path}\n")
    inner = f"{root}{path}"
    for limit_bytes in 1_000, 2_000:
        write(Path(inner), memory__max=limit_bytes, memory__current=500, memory__stat="inactive_file 100\n")
        (found,) = GroupReader(proc, root).limited(7)
        assert (found.cgroup, found.limit_bytes, found.room_bytes) == (path, limit_bytes, limit_bytes - 400)


def test_a_group_that_goes_meanwhile(proc: Path, tmp_path: Path) -> None:
    """It keeps the figures known so far; without any it has none."""
    directory = tmp_path / "shop" / "worker"
    write(directory, memory__max=90_000_000, memory__current=80_000_000, memory__stat=STAT_V2)
    group = GroupReader(proc, tmp_path).narrowest(7)
    assert group is not None
    for file in directory.iterdir():
        file.unlink()
    assert read_group_memory(group) == GroupMemory("/shop/worker", 2, 90_000_000, 80_000_000, {})
    assert GroupReader(proc, tmp_path).narrowest(7) is None
    assert GroupReader(proc, tmp_path).narrowest(8) is None


def test_what_a_process_has_of_it(proc: Path) -> None:
    """By its status."""
    assert read_process_parts(7, proc) == {
        ContainerKind.PAGE_TABLES: 88 * 1024,
        ContainerKind.ANON: 3_000 * 1024,
        ContainerKind.FILE: 2_000 * 1024,
        ContainerKind.SHMEM: 5 * 1024,
    }
    assert read_process_parts(8, proc) == {}


def test_the_name_of_a_group_is_no_further_group(proc: Path, tmp_path: Path) -> None:
    """A user who may make groups chooses their names, with all characters but newlines."""
    write(tmp_path / "cgroup" / "shop" / "worker", **{"memory.max": 1 << 20, "memory.current": 1 << 10})
    (proc / "7" / "cgroup").write_bytes(b"0::/mine\r0::/shop/worker\n")
    assert GroupReader(proc, tmp_path / "cgroup").narrowest(7) is None
