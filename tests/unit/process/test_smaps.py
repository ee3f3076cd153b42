"""smaps and status: real ones, and malformed ones."""

from __future__ import annotations

import io
import mmap
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd import errors
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.smaps import parse_smaps, read_smaps, read_status

PAGE = 4096

SMAPS = b"""\
5651cda51000-5651cda80000 r--s 00001000 fe:00 260104                     /usr/bin/a b (deleted)
Size:                188 kB
Rss:                  92 kB
Pss:                  46 kB
Private_Dirty:        20 kB
Swap:                  4 kB
SwapPss:               4 kB
VmFlags: rd mr mw me sd
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Rss:                   0 kB
Shared_Hugetlb:     4096 kB
Private_Hugetlb:    2048 kB
VmFlags: rd wr ht nr
"""


def parsed(text: bytes, **options: int):
    return parse_smaps(io.BytesIO(text), **options)


def test_each_mapping_has_its_memory():
    """In bytes; huge pages of hugetlbfs are not in Rss, but are in memory."""
    file, huge = parsed(SMAPS).usages
    assert (file.mapping.start, file.mapping.end) == (0x5651CDA51000, 0x5651CDA80000)
    assert (file.mapping.path, file.mapping.deleted, file.shared) == ("/usr/bin/a b", True, True)
    assert (file.resident_bytes, file.private_dirty_bytes, file.swap_bytes) == (92 << 10, 20 << 10, 4 << 10)
    assert file.flags == {"rd", "mr", "mw", "me", "sd"}
    assert (huge.mapping.path, huge.shared, huge.flags) == ("", False, {"rd", "wr", "ht", "nr"})
    assert (huge.resident_bytes, huge.private_dirty_bytes) == (6 << 20, 2 << 20)


def test_malformed_lines_are_left_out():
    """And the lines around them count; a mapping without figures has none."""
    text = SMAPS.replace(b"92 kB", b"ninety kB") + b"junk\n12-zz rw-p\nRss: 4 kB\n1000-2000 rw-p 0 00:00 0\n"
    usages = parsed(text).usages
    assert [usage.resident_bytes for usage in usages] == [0, 6 << 20, 0]
    assert usages[-1].flags == frozenset()


def test_mappings_beyond_the_limit_are_counted():
    """A process may have millions of them."""
    text = b"".join(b"%x000-%x000 rw-p 0 00:00 0\nRss: 4 kB\n" % (n, n + 1) for n in range(1, 101))
    smaps = parsed(text, mappings_max=23)
    assert (len(smaps.usages), smaps.left_out) == (23, 77)
    assert parsed(text).left_out == 0


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(text):
    """The kernel writes it, but paths in it are anybody's."""
    parsed(SMAPS[:200] + text)


def test_our_own_memory():
    """The same mappings as in maps, and touched memory is resident."""
    # Shared, because the kernel merges adjacent private anonymous memory.
    with mmap.mmap(-1, 53 * PAGE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS) as memory:
        before = _in_memory(memory)
        for n in range(31):
            memory[n * PAGE] = 1
        assert _in_memory(memory) - before == 31 * PAGE
    assert {m.path for m in read_mappings(os.getpid())} == {
        usage.mapping.path for usage in read_smaps(os.getpid()).usages
    }


def _in_memory(memory: mmap.mmap) -> int:
    import ctypes

    buffer = (ctypes.c_char * len(memory)).from_buffer(memory)
    address = ctypes.addressof(buffer)
    del buffer
    (usage,) = [u for u in read_smaps(os.getpid()).usages if u.mapping.start <= address < u.mapping.end]
    return usage.resident_bytes


def test_5_000_mappings_are_read_in_time(tmp_path):
    """Of a large program; the tracing thread reads it."""
    block = SMAPS[: SMAPS.index(b"7f0000000000")] + b"".join(b"Field%d:   0 kB\n" % n for n in range(18))
    directory = tmp_path / "23"
    directory.mkdir()
    (directory / "smaps").write_bytes(block * 5_000)
    began_s = time.process_time()
    assert len(read_smaps(23, tmp_path).usages) == 5_000
    assert time.process_time() - began_s < 1


def test_a_process_that_is_gone_or_a_zombie(tmp_path):
    """It has no memory; a kernel without smaps is a different error."""
    with pytest.raises(errors.NoSuchProcess):
        read_smaps(23, tmp_path)
    with pytest.raises(errors.NoSuchProcess):
        read_status(23, tmp_path)
    (tmp_path / "23").mkdir()
    with pytest.raises(errors.KernelUnsupported, match="smaps"):
        read_smaps(23, tmp_path)
    (tmp_path / "23/smaps").touch()
    with pytest.raises(errors.NoSuchProcess, match="no longer has any memory"):
        read_smaps(23, tmp_path)


def test_status(tmp_path):
    """Figures in bytes; those that are not there are 0 (a kernel thread has none)."""
    (tmp_path / "23").mkdir()
    path: Path = tmp_path / "23/status"
    path.write_bytes(b"Name:\tVmHWM: 7 kB\nVmHWM:\t   1009 kB\nVmPTE:\t      52 kB\n")
    status = read_status(23, tmp_path)
    assert (status.peak_resident_bytes, status.page_table_bytes) == (1009 << 10, 52 << 10)
    path.write_bytes(b"Name:\tkthreadd\n")
    assert read_status(23, tmp_path).peak_resident_bytes == 0
