"""Records of oom:mark_victim, as old and new kernels write them, and the rings of this one."""

from __future__ import annotations

import struct

import pytest

from bpfleakd.kernel.oom_events import _piece, parse_format, parse_victim
from bpfleakd.model.oom import OomVictim

_COMMON = """\
name: mark_victim
ID: 609
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int pid;\toffset:8;\tsize:4;\tsigned:1;
"""
OLD = f'{_COMMON}\nprint fmt: "pid=%d", REC->pid\n'
NEW = f"""{_COMMON}\
\tfield:__data_loc char[] comm;\toffset:12;\tsize:4;\tsigned:0;
\tfield:unsigned long total_vm;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned long anon_rss;\toffset:24;\tsize:8;\tsigned:0;
\tfield:unsigned long file_rss;\toffset:32;\tsize:8;\tsigned:0;
\tfield:unsigned long shmem_rss;\toffset:40;\tsize:8;\tsigned:0;
\tfield:uid_t uid;\toffset:48;\tsize:4;\tsigned:0;
\tfield:unsigned long pgtables;\toffset:56;\tsize:8;\tsigned:0;
\tfield:short oom_score_adj;\toffset:64;\tsize:2;\tsigned:1;
"""


def a_new_record(comm: bytes = b"shop\0") -> bytes:
    located = len(comm) << 16 | 66
    fields = struct.pack("=HBBiiIQQQQI4xQh", 609, 0, 0, 4711, 4711, located, 90_000, 7_000, 500, 3, 0, 88, 0)
    return fields + comm + bytes(3)


def test_an_old_kernel_tells_only_the_pid():
    """That is all that there is for sure."""
    record = struct.pack("=HBBii", 609, 0, 0, 4711, 4712) + bytes(4)
    assert parse_victim(parse_format(OLD), record, 23) == OomVictim(4712, 23)


def test_a_new_kernel_tells_the_figures_too():
    """In kilobytes; the name lies behind the fields."""
    assert parse_victim(parse_format(NEW), a_new_record(), 23) == OomVictim(
        4711, 23, "shop", 7_000 << 10, 500 << 10, 3 << 10, 88 << 10
    )


def test_a_name_is_made_printable():
    """A process chooses it."""
    victim = parse_victim(parse_format(NEW), a_new_record(b"\x1b[2J\0"), 0)
    assert victim is not None
    assert victim.comm == r"\x1b[2J"


@pytest.mark.parametrize("length", [0, 7, 11])
def test_a_record_that_is_too_short_is_none(length):
    """Whatever the kernel may write in the future."""
    assert parse_victim(parse_format(NEW), a_new_record()[:length], 0) is None


def test_fields_that_are_missing_are_not_told():
    """As in a record that was cut, and in a kernel that has renamed them."""
    found = parse_victim(parse_format(NEW), a_new_record()[:30], 0)
    assert found == OomVictim(4711, 0)
    with pytest.raises(ValueError, match="the pid"):
        parse_format("name: mark_victim\n\tfield:int victim;\toffset:8;\tsize:4;\tsigned:1;\n")


def test_a_record_may_go_on_at_the_beginning_of_its_ring():
    """The ring is the page behind the first."""
    ring = bytearray(8192)
    ring[8190:8192], ring[4096:4099] = b"ab", b"cde"
    assert _piece(ring, 3 * 4096 - 2, 5) == b"abcde"
