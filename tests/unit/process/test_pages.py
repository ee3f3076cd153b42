"""Pages in memory and stack pointers: of this process, and of none."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading

from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.pages import Pagemap, stack_pointers

PAGE = 4096


def test_touched_pages_are_counted():
    """Exactly, and in any part of a mapping."""
    memory = mmap.mmap(-1, 53 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory))
    for n in range(0, 53, 2):
        memory[n * PAGE] = 1
    pagemap = Pagemap(os.getpid())
    assert pagemap.count(address, address + 53 * PAGE) == (27 * PAGE, 0)
    assert pagemap.count(address + 10 * PAGE, address + 15 * PAGE) == (3 * PAGE, 0)
    assert pagemap.count(address, address) == (0, 0)


def test_pages_beyond_the_limit_are_not_counted():
    """So a terabyte of addresses is not read page by page; smaller ranges still are."""
    pagemap = Pagemap(os.getpid(), pages_max=100)
    assert pagemap.count(0, 101 * PAGE) is None
    assert pagemap.count(0, 60 * PAGE) == (0, 0)
    assert pagemap.count(0, 60 * PAGE) is None


def test_a_process_that_is_gone_cannot_be_counted(tmp_path):
    """The caller then estimates."""
    assert Pagemap(23, tmp_path).count(0, PAGE) is None
    (tmp_path / "23").mkdir()
    (tmp_path / "23/pagemap").write_bytes(b"\0" * 12)
    assert Pagemap(23, tmp_path).count(0, 3 * PAGE) is None
    assert Pagemap(23, tmp_path).count(1 << 63, (1 << 63) + PAGE) is None


def test_threads_that_wait_have_a_stack_pointer():
    """In their own stack; this one runs and has none."""
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait)
    thread.start()
    try:
        pointers = stack_pointers(os.getpid())
    finally:
        waiting.set()
        thread.join()
    mappings = read_mappings(os.getpid())
    assert pointers
    assert all(any(m.start <= pointer < m.end and m.writable for m in mappings) for pointer in pointers)


def test_what_cannot_be_read_is_left_out(tmp_path):
    """Threads end while they are looked at."""
    assert stack_pointers(23, tmp_path) == []
    for tid, text in (
        ("1", "running\n"),
        ("2", "202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd00001000 0x401000\n"),
        ("3", "-1 0x7ffd00002000 0x401000\n"),
        ("4", ""),
        ("5", "0 x y"),
    ):
        (tmp_path / "23/task" / tid).mkdir(parents=True)
        (tmp_path / "23/task" / tid / "syscall").write_text(text)
    (tmp_path / "23/task/6").mkdir()
    assert sorted(stack_pointers(23, tmp_path)) == [0x7FFD00001000, 0x7FFD00002000]
    assert len(stack_pointers(23, tmp_path, threads_max=0)) == 0
