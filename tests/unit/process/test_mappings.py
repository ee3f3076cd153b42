"""/proc/PID/maps: every line that the kernel can write, and none that it cannot."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.process.mappings import KnownMappings, parse_mappings, read_mappings

from .proc_files import a_process

CODE = Mapping(0x7F00_0000_1000, 0x7F00_0000_3000, 0x1000, "fe:01", 23, "/lib/libc.so.6", True, False, True)


def line_of(mapping: Mapping) -> str:
    """A line as the kernel writes it (fs/proc/task_mmu.c): only newlines in paths are escaped."""
    rights = "".join(
        letter if granted else "-"
        for letter, granted in zip(
            "rwx", (mapping.readable, mapping.writable, mapping.executable), strict=True
        )
    )
    rights += "s" if mapping.shared else "p"
    numbers = f"{mapping.start:08x}-{mapping.end:08x} {rights} {mapping.offset:08x} {mapping.device}"
    line = f"{numbers} {mapping.inode} "
    if mapping.path:
        path = mapping.path.replace("\n", "\\012") + (" (deleted)" if mapping.deleted else "")
        line = line.ljust(73) + path
    return line + "\n"


def one(line: str) -> Mapping:
    (mapping,) = parse_mappings(line + "\n")
    return mapping


def test_a_line_of_a_file() -> None:
    """Addresses and offset are hexadecimal, the inode is decimal."""
    line = "7f0000001000-7f0000003000 r-xp 00001000 fe:01 23                         /lib/libc.so.6"
    assert one(line) == CODE


@pytest.mark.parametrize(
    ("rest", "path", "deleted"),
    [
        ("rw-p 00000000 00:00 0 ", "", False),
        ("rw-p 00000000 00:00 0 [heap]", "[heap]", False),
        ("r-xp 00000000 00:00 0 [vdso]", "[vdso]", False),
        ("rw-p 00000000 00:00 0 [anon:a name] b", "[anon:a name] b", False),
        ("r-xp 00000000 fe:01 23 /tmp/a b  c", "/tmp/a b  c", False),
        ("r-xp 00000000 fe:01 23 /tmp/ends in spaces  ", "/tmp/ends in spaces  ", False),
        ("r-xp 00000000 fe:01 23 /tmp/x (deleted)", "/tmp/x", True),
        ("r-xp 00000000 fe:01 23 /tmp/x (deleted) (deleted)", "/tmp/x (deleted)", True),
        ("r-xp 00000000 fe:01 23 /tmp/(deleted)", "/tmp/(deleted)", False),
        (r"r-xp 00000000 fe:01 23 /tmp/a\012b", "/tmp/a\nb", False),
        (r"r-xp 00000000 fe:01 23 /tmp/a\040b\\c", r"/tmp/a\040b\\c", False),
        ("r-xp 00000000 fe:01 23 /tmp/a\rb\x0b\x0c\x85\u2028c", "/tmp/a\rb\x0b\x0c\x85\u2028c", False),
        ("rwxs 00000000 00:05 31 /memfd:doublemapper (deleted)", "/memfd:doublemapper", True),
    ],
)
def test_paths(rest: str, path: str, deleted: bool) -> None:
    """Paths hold anything: only a newline is escaped, and only a last " (deleted)" is the kernel's."""
    mapping = one(f"7f0000001000-7f0000003000 {rest}")
    assert (mapping.path, mapping.deleted) == (path, deleted)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "7f0000001000-7f0000003000",
        "7f0000001000 r-xp 00000000 fe:01 23 /x",
        "1-2-3 r-xp 00000000 fe:01 23 /x",
        "nowhere-7f0000003000 r-xp 00000000 fe:01 23 /x",
        "1000-2000 r-xp what fe:01 23 /x",
        "1000-2000 r-xp 00000000 fe:01 inode /x",
        "Rss:                 23 kB",
    ],
)
def test_malformed_lines_are_left_out(line: str) -> None:
    """Malformed lines are skipped; the lines around them count."""
    assert parse_mappings(line_of(CODE) + line + "\n" + line_of(CODE)) == (CODE, CODE)


PATHS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40).map("/".__add__)
MAPPINGS = st.builds(
    Mapping,
    start=st.integers(0, (1 << 47) - 1),
    end=st.integers(0, (1 << 64) - 1),
    offset=st.integers(0, (1 << 64) - 1),
    device=st.from_regex(r"[0-9a-f]{2,3}:[0-9a-f]{2,5}", fullmatch=True),
    inode=st.integers(0, (1 << 64) - 1),
    path=st.one_of(
        st.just(""),
        st.sampled_from(["[heap]", "[vdso]", "[stack]"]),
        # The kernel writes the same for these two as for other paths.
        PATHS.filter(lambda path: "\\012" not in path and not path.endswith(" (deleted)")),
    ),
    readable=st.booleans(),
    writable=st.booleans(),
    executable=st.booleans(),
    shared=st.booleans(),
)


@given(mappings=st.lists(MAPPINGS, max_size=5), deleted=st.booleans())
def test_whatever_the_kernel_writes_is_read(mappings: list[Mapping], deleted: bool) -> None:
    """Any mappings, written as the kernel does, come back as they were."""
    if deleted:
        mappings = [replace(mapping, deleted=mapping.path.startswith("/")) for mapping in mappings]
    assert parse_mappings("".join(map(line_of, mappings))) == tuple(mappings)


class TestReading:
    """From /proc."""

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        """Neither a name that is not UTF-8 nor a carriage return affects other lines."""
        lines = b"1000-2000 r-xp 00000000 fe:01 23 /tmp/\xff\n2000-3000 r--p 00000000 fe:01 24 /tmp/a\rb\r\n"
        a_process(tmp_path, maps=lines)
        paths = [mapping.path for mapping in read_mappings(4_711, tmp_path)]
        assert [os.fsencode(path) for path in paths] == [b"/tmp/\xff", b"/tmp/a\rb\r"]

    def test_no_such_process(self, tmp_path: Path) -> None:
        """A process that has ended has no file, or an empty one while it is a zombie."""
        with pytest.raises(errors.NoSuchProcess):
            read_mappings(4_711, tmp_path)
        a_process(tmp_path, maps=b"")
        with pytest.raises(errors.NoSuchProcess):
            read_mappings(4_711, tmp_path)

    def test_a_real_zombie(self) -> None:
        """The kernel shows an empty list for one."""
        child = subprocess.Popen(["true"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        try:
            with pytest.raises(errors.NoSuchProcess):
                read_mappings(child.pid)
        finally:
            child.wait()

    @pytest.mark.parametrize(
        "name", ["plain", "with  spaces ", "line\nfeed", "carriage\rreturn", "\udcff", "a (deleted)"]
    )
    def test_a_file_of_our_own(self, tmp_path: Path, name: str) -> None:
        """A file that this process maps is identified by device and inode, whatever its name."""
        file = tmp_path / name
        file.write_bytes(bytes(2 * mmap.PAGESIZE))
        status = file.stat()
        with (
            file.open("rb") as opened,
            mmap.mmap(opened.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ) as memory,
        ):
            found = [mapping for mapping in read_mappings(os.getpid()) if mapping.inode == status.st_ino]
            assert len(memory) == mmap.PAGESIZE
        (mapping,) = found
        assert mapping.end - mapping.start == mmap.PAGESIZE
        assert (mapping.readable, mapping.writable, mapping.executable) == (True, False, False)
        path = mapping.path + (" (deleted)" if mapping.deleted else "")
        assert path == str(file)


def test_mappings_that_have_not_changed_are_the_same(tmp_path: Path) -> None:
    """They are parsed again once one has; very many are not kept."""
    maps = tmp_path / "23" / "maps"
    maps.parent.mkdir()
    maps.write_text(line_of(CODE))
    known = KnownMappings(23, tmp_path)
    first = known()
    assert first == (CODE,)
    assert known() is first
    maps.write_text(line_of(CODE) + line_of(replace(CODE, start=0x7F00_0000_3000, end=0x7F00_0000_4000)))
    assert len(known()) == 2
    maps.write_text(line_of(CODE) * 5_000)
    assert len(known()) == 5_000
    assert known() is not known()
    maps.write_text("")
    with pytest.raises(errors.NoSuchProcess):
        known()
