"""What a JIT appends to its perf map; a user writes the file, and root reads it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.symbols.perf_map import NAME_LIMIT_CHARACTERS
from bpfleakd.symbols.perf_map_tail import PerfMapTail

OUR_ROOT = TargetRoot(os.getpid(), Path("/"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perf-23.map"


def tail_of(path: Path, **options: int) -> PerfMapTail:
    return PerfMapTail(path, os.geteuid(), OUR_ROOT, **options)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_what_is_appended_is_read(path):
    """Once, in its order; numbers may be written in different ways."""
    path.write_text("1000 10 old\n")
    tail = tail_of(path)
    assert tail.read() == []
    append(path, "2000 1c a b\n0x3000 0x20 c\n0000000000004000 0000000000000030 d\n")
    assert tail.read() == [("a b", 0x1C), ("c", 0x20), ("d", 0x30)]
    assert tail.read() == []
    assert not tail.take_rewritten()


def test_a_map_that_comes_later_is_all_new(path):
    """Most run-times create it with their first method."""
    tail = tail_of(path)
    assert tail.read() == []
    path.write_text("1000 10 first\n")
    assert tail.read() == [("first", 0x10)]
    assert (tail.refused, tail.take_rewritten()) == (False, False)


def test_half_a_line_is_read_when_it_is_whole(path):
    """Also if it was being written at the attach: then it is new."""
    path.write_text("1000 10 old\n2000 1")
    tail = tail_of(path)
    assert tail.read() == []
    append(path, "0 half\n3000 10 who")
    assert tail.read() == [("half", 0x10)]
    append(path, "le\n")
    assert tail.read() == [("whole", 0x10)]


@pytest.mark.parametrize("text", ["1000 10 a\n", "1000 10 new\n", "1000 10 new\n2000 10 newer\n"])
def test_a_file_written_anew_is_read_from_its_start(path, text):
    """Shorter, as long or longer; and this is reported once."""
    path.write_text("1000 10 old\n")
    tail = tail_of(path)
    path.write_text(text)
    assert [name for name, _ in tail.read()] == [line.split()[2] for line in text.splitlines()]
    assert tail.take_rewritten()
    assert not tail.take_rewritten()


def test_another_file_of_the_name_is_read_from_its_start(path):
    """A JIT may replace it."""
    path.write_text("1000 10 old\n")
    tail = tail_of(path)
    path.with_name("x").write_text("1000 10 old\n2000 10 new\n")
    path.with_name("x").rename(path)
    assert [name for name, _ in tail.read()] == ["old", "new"]
    assert tail.take_rewritten()


def test_more_than_the_limit_is_read_from_the_end(path):
    """The newest part counts; the skipped rest is reported, including a line cut in two."""
    tail = tail_of(path, read_limit_bytes=145)
    path.write_text("".join(f"{n:04x} 10 f{n:03}\n" for n in range(1, 101)))
    assert [name for name, _ in tail.read()] == [f"f{n:03}" for n in range(90, 101)]
    assert tail.skipped_bytes == 89 * 13
    assert tail.read() == []


def test_a_line_without_end_is_given_up(path):
    """It would be read again forever."""
    tail = tail_of(path)
    path.write_bytes(b"1000 10 " + b"n" * 1_000_000)
    assert tail.read() == []
    append(path, "\n2000 10 next\n")
    assert tail.read() == [("next", 0x10)]


def test_names_are_printable_and_short(path):
    """Escape sequences and undecodable bytes are shown as escapes; junk is not a method."""
    tail = tail_of(path)
    path.write_bytes(b"junk\n\n1000 10 \x1b]0;owned\x07\xff\r\n1000 -1 x\n2000 10 " + b"n" * 5_000 + b"\n")
    (hostile, _), (long_name, _) = tail.read()
    assert hostile == "\\x1b]0;owned\\x07\\xff"
    assert len(long_name) == NAME_LIMIT_CHARACTERS


def test_what_is_not_a_users_own_regular_file_is_refused(path, tmp_path):
    """A symlink, a pipe, another user's file: nothing is read, and nothing blocks."""
    (tmp_path / "secret").write_text("1000 10 secret\n")
    path.symlink_to(tmp_path / "secret")
    tail = tail_of(path)
    assert (tail.read(), tail.refused) == ([], True)
    path.unlink()
    os.mkfifo(path)
    assert (tail.read(), tail.refused) == ([], True)
    path.unlink()
    path.write_text("1000 10 mine\n")
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
    other = PerfMapTail(path, 4712, OUR_ROOT)
    assert os.stat(path).st_uid not in (0, 4712)
    assert (other.read(), other.refused) == ([], True)


def test_descriptors_are_not_kept(path):
    """Hundreds of processes may be traced."""
    path.write_text("1000 10 a\n")
    before = len(os.listdir("/proc/self/fd"))
    tails = [tail_of(path) for _ in range(23)]
    append(path, "2000 10 b\n")
    assert [len(tail.read()) for tail in tails] == [1] * 23
    assert len(os.listdir("/proc/self/fd")) == before


@given(pieces=st.lists(st.binary(max_size=80), max_size=6))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
    """Whatever is appended, reading continues."""
    path = tmp_path_factory.mktemp("random") / "perf.map"
    tail = tail_of(path)
    for piece in pieces:
        with path.open("ab") as file:
            file.write(piece)
        tail.read()
    with path.open("ab") as file:
        file.write(b"\n1000 10 at last\n")
    assert tail.read()[-1] == ("at last", 0x10)
