"""Anonymous memory of a process: of this one, of made-up ones, and of none."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess

import pytest

from bpfleakd.model.process import ProcessId
from bpfleakd.process.memory_sampler import own_resident_bytes, read_anonymous_bytes
from bpfleakd.process.process import read_process

from .proc_files import a_process

MEMORY = {"RssAnon": "    1234 kB", "RssFile": "   99999 kB", "VmSwap": "     100 kB"}


def test_a_real_process_grows_by_what_it_touches():
    """Pages that are only reserved, or that belong to a file, do not count."""
    process = read_process(os.getpid()).id
    before = read_anonymous_bytes(process)
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, 23 << 20, mmap.PAGESIZE):
            memory[page] = 1
        grown = read_anonymous_bytes(process) - before
    # Huge pages may round it up, and the kernel's counters are a little late.
    assert 22 << 20 <= grown <= 28 << 20


def test_our_own_memory():
    """Between its anonymous memory and its peak."""
    resident = own_resident_bytes()
    assert read_anonymous_bytes(read_process(os.getpid()).id) / 2 < resident
    assert resident <= (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) * 1.1


def test_swapped_memory_counts(tmp_path):
    """A leak that is swapped out still grows."""
    pid = a_process(tmp_path, status=MEMORY)
    assert read_anonymous_bytes(ProcessId(pid, 8_009), proc=tmp_path) == 1334 * 1024


def test_another_process_with_the_same_pid_is_not_read(tmp_path):
    """A process is known by pid and start time."""
    pid = a_process(tmp_path, status=MEMORY)
    assert read_anonymous_bytes(ProcessId(pid, 8_010), proc=tmp_path) is None


def test_what_is_known_already_is_nothing_new(tmp_path):
    """Whose memory it is makes no difference then, and is not read; anything else is checked."""
    pid = a_process(tmp_path, status=MEMORY)
    another, known_bytes = ProcessId(pid, 8_010), 1334 * 1024
    assert read_anonymous_bytes(another, known_bytes, tmp_path) == known_bytes
    assert read_anonymous_bytes(another, known_bytes + 1024, tmp_path) is None
    (tmp_path / str(pid) / "stat").unlink()
    assert read_anonymous_bytes(another, known_bytes, tmp_path) == known_bytes
    assert read_anonymous_bytes(another, 0, tmp_path) is None


def test_a_process_without_memory_has_none(tmp_path):
    """Kernel threads and zombies have no such fields."""
    pid = a_process(tmp_path)
    assert read_anonymous_bytes(ProcessId(pid, 8_009), proc=tmp_path) is None


def test_a_zombie_has_none():
    """It waits for its parent, possibly forever."""
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert read_anonymous_bytes(read_process(child.pid).id) is None


@pytest.mark.parametrize("comm", [b") S 1 (", b"\nRssAnon:\t9 kB", b"x" * 15], ids=repr)
def test_a_name_says_nothing_about_the_memory(tmp_path, comm):
    """A process chooses its name, and the kernel escapes only line breaks in it."""
    pid = a_process(tmp_path, comm=comm, status=MEMORY)
    assert read_anonymous_bytes(ProcessId(pid, 8_009), proc=tmp_path) == 1334 * 1024


def test_a_process_that_is_gone_has_none(tmp_path):
    """It may end at any moment."""
    assert read_anonymous_bytes(ProcessId(23, 8_009), proc=tmp_path) is None
