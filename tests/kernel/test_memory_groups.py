"""This kernel's figures of control groups, and its reports of OOM victims, without tracing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bpfleakd.analysis.container_bill import container_bill
from bpfleakd.kernel.oom_events import OomEvents
from bpfleakd.model.container import ContainerKind
from bpfleakd.process.memory_groups import GroupReader, read_group_memory, read_process_parts

from .memory_cgroup import memory_cgroup
from .waiting import wait_until

MIB = 1 << 20

# Enters a group, takes memory, writes a file, and waits for the end of its input.
PROGRAM = """
import os, sys, threading
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
memory = bytearray(int(sys.argv[2]))
if len(sys.argv) > 3:
    with open(sys.argv[3], "wb") as file:
        file.write(bytes(16 << 20))
threads = [threading.Thread(target=sys.stdin.read) for _ in range(9)]
for thread in threads:
    thread.start()
print("ready", flush=True)
"""


def start(group: Path, size_bytes: int, *more: object) -> subprocess.Popen:
    arguments = [sys.executable, "-c", PROGRAM, group, str(size_bytes), *map(str, more)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_a_group_is_charged_for_adds_up(tmp_path):
    """By kind, and nearly all of it by name, in the version of cgroups that there is."""
    with memory_cgroup(256 * MIB) as group, start(group.directory, 40 * MIB, tmp_path / "file") as program:
        assert program.stdout.readline() == "ready\n"

        def bill_is_right() -> bool:
            limited = GroupReader().narrowest(program.pid)
            assert limited is not None
            assert (limited.directory, limited.limit_bytes) == (group.directory, 256 * MIB)
            bill = container_bill(read_group_memory(limited), read_process_parts(program.pid))
            lines = {line.kind: line for line in bill.lines}
            assert bill.version == group.version
            total = sum(line.bytes for line in bill.lines)
            others = lines.get(ContainerKind.OTHER)
            return (
                total == pytest.approx(group.used_bytes, rel=0.01)
                and (others is None or others.bytes <= 2 * MIB)
                and 40 * MIB <= lines[ContainerKind.ANON].bytes <= 60 * MIB
                and lines[ContainerKind.ANON].process_bytes
                == pytest.approx(lines[ContainerKind.ANON].bytes, rel=0.1)
                # The file may be in tmpfs.
                and any(
                    kind in lines and 16 * MIB <= lines[kind].bytes <= 40 * MIB
                    for kind in (ContainerKind.FILE, ContainerKind.SHMEM)
                )
                and (group.version == 1 or ContainerKind.KERNEL_STACK in lines)
            )

        # The kernel sums up the CPUs' counts every two seconds.
        wait_until(bill_is_right)
        program.communicate("")


def test_the_kernel_tells_whom_it_kills():
    """Before the victim is gone; with figures, where the kernel has them."""
    events = OomEvents()
    try:
        with memory_cgroup(24 * MIB) as group, start(group.directory, 64 * MIB) as program:
            assert program.wait() == -9
            (victim,) = [each for each in events.read() if each.pid == program.pid]
        if victim.comm:
            assert victim.comm.startswith("python")
            # Including the memory from before it entered the group.
            assert 16 * MIB <= victim.anon_bytes <= 48 * MIB
            assert victim.page_table_bytes > 0
        else:
            assert victim.anon_bytes is None
        assert events.read() == []
        assert events.lost_count == 0
    finally:
        events.close()
