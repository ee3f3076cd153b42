"""Perf maps: as JIT compilers write them, and as an attacker might."""

from __future__ import annotations

import contextlib
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.symbols import perf_map as perf_map_module
from bpfleakd.symbols.perf_map import NAME_LIMIT_CHARACTERS, JitSymbol, PerfMap

from ..waiting import until

OUR_ROOT = TargetRoot(os.getpid(), Path("/"))

START = 0x7F0000001000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "perf-23.map"


@pytest.fixture
def perf_map(path: Path) -> Iterator[PerfMap]:
    opened = PerfMap(path, os.geteuid(), OUR_ROOT)
    yield opened
    opened.close()


def name_at(perf_map: PerfMap, address: int) -> str | None:
    perf_map.refresh()
    symbol = perf_map.lookup(address)
    return symbol.name if symbol else None


class TestReading:
    """Maps as they are meant."""

    def test_address_in_a_range(self, path: Path, perf_map: PerfMap) -> None:
        """Every address of a range has the name, and none outside."""
        path.write_text(f"{START:x} 20 LazyCompile:*leak /srv/app.js:3:14\n{START + 0x40:x} 8 next\n")
        perf_map.refresh()
        expected = JitSymbol("LazyCompile:*leak /srv/app.js:3:14", START, 0x20)
        assert perf_map.lookup(START) == perf_map.lookup(START + 0x1F) == expected
        assert [perf_map.lookup(START + n) for n in (-1, 0x20, 0x3F, 0x48)] == [None] * 4
        assert perf_map.losses == {}

    def test_prefixes_and_capitals(self, path: Path, perf_map: PerfMap) -> None:
        """Some runtimes write 0x, some capitals, and HotSpot fills up with zeroes."""
        path.write_text(
            "0x7F00AB 0x1C one\n7f00d0 1c two\n0x00007f0000200000 0x00000000000001d8 long Shop.keep(long)\n"
        )
        assert name_at(perf_map, 0x7F00002001D7) == "long Shop.keep(long)"
        assert perf_map.losses == {}
        assert name_at(perf_map, 0x7F00AB + 0x1B) == "one"
        assert name_at(perf_map, 0x7F00D0) == "two"

    def test_addresses_of_type_descriptions(self, path: Path, perf_map: PerfMap) -> None:
        """.NET writes them into names; they would be other ones in every run."""
        path.write_text(
            f"{START:x} 20 int32 [Anonymously Hosted DynamicMethods Assembly] dynamicClass::lambda_method("
            "System.Runtime.CompilerServices.Closure /* MT: 0x00007FD33435C670 */)[Optimized]\n"
        )
        assert name_at(perf_map, START) == (
            "int32 [Anonymously Hosted DynamicMethods Assembly] dynamicClass::lambda_method("
            "System.Runtime.CompilerServices.Closure)[Optimized]"
        )

    def test_newest_entry_wins(self, path: Path, perf_map: PerfMap) -> None:
        """Code is compiled again at the same place, and across the places of others."""
        path.write_text("1000 100 old\n1000 100 new\n2000 100 left\n2100 100 right\n20f0 20 across\n")
        assert name_at(perf_map, 0x1050) == "new"
        assert [name_at(perf_map, a) for a in (0x20EF, 0x20F0, 0x2105, 0x2110)] == [
            "left",
            "across",
            "across",
            "right",
        ]

    def test_appended_lines_are_read(self, path: Path, perf_map: PerfMap) -> None:
        """The map grows while the program runs; the generation tells that names may have changed."""
        path.write_text("1000 10 first\n")
        assert name_at(perf_map, 0x2000) is None
        before = perf_map.generation
        perf_map.refresh()
        assert perf_map.generation == before
        with path.open("a") as file:
            file.write("2000 10 second\n")
        assert name_at(perf_map, 0x2000) == "second"
        assert name_at(perf_map, 0x1000) == "first"
        assert perf_map.generation != before

    def test_half_a_line_is_kept_for_later(self, path: Path, perf_map: PerfMap) -> None:
        """A line is read when it is whole, not before."""
        path.write_text("1000 10 first\n2000 10 sec")
        assert name_at(perf_map, 0x2000) is None
        assert name_at(perf_map, 0x1000) == "first"
        with path.open("a") as file:
            file.write("ond\n")
        assert name_at(perf_map, 0x2000) == "second"
        assert perf_map.losses == {}

    def test_replaced_file_is_read_from_the_start(self, path: Path, perf_map: PerfMap) -> None:
        """A new file of the name has nothing to do with the old one."""
        path.write_text("1000 10 old\n")
        assert name_at(perf_map, 0x1000) == "old"
        other = path.with_name("other")
        other.write_text("2000 10 new\n3000 10 newer\n")
        other.rename(path)
        assert [name_at(perf_map, a) for a in (0x1000, 0x2000)] == [None, "new"]

    @pytest.mark.parametrize("text", ["2000 10 b\n", "2000 10 new\n", "2000 10 new\n3000 10 newer\n"])
    def test_file_written_anew(self, path: Path, perf_map: PerfMap, text: str) -> None:
        """OpenJDK writes its map again in place: shorter, as long or longer."""
        path.write_text("1000 10 old\n")
        assert name_at(perf_map, 0x1000) == "old"
        path.write_text(text)
        assert name_at(perf_map, 0x1000) is None
        assert name_at(perf_map, 0x2000) == text.split()[2]

    def test_file_written_anew_between_refresh_and_lookup(self, path: Path, perf_map: PerfMap) -> None:
        """A name is not believed if the numbers before it are not those that were read."""
        path.write_text("1000 10 old\n2000 10 other\n")
        perf_map.refresh()
        path.write_text("5000 10 new\n6000 10 newer\n")
        assert perf_map.lookup(0x1000) is None
        assert name_at(perf_map, 0x5000) == "new"

    def test_names_stay_when_the_file_goes(self, path: Path, perf_map: PerfMap) -> None:
        """The process ended and its map was removed: stacks are still to be named."""
        path.write_text("1000 10 leak\n")
        perf_map.refresh()
        path.unlink()
        assert name_at(perf_map, 0x1000) == "leak"
        assert perf_map.losses == {}

    def test_what_is_written_to_an_open_file_that_has_gone(self, path: Path, perf_map: PerfMap) -> None:
        """A container's /tmp goes with its process; entries until then are read nevertheless."""
        path.write_text("1000 10 early\n")
        perf_map.open()
        with path.open("a") as file:
            path.unlink()
            file.write("2000 10 late\n")
        assert [name_at(perf_map, address) for address in (0x1000, 0x2000)] == ["early", "late"]
        assert perf_map.losses == {}

    def test_no_file_is_no_loss(self, perf_map: PerfMap) -> None:
        """Most processes have no map."""
        assert name_at(perf_map, 0x1000) is None
        assert perf_map.losses == {}

    def test_200_000_entries(self, path: Path, perf_map: PerfMap) -> None:
        """A large .NET service fits into 10 MB and is read within a second of processor time."""
        name = "void [System.Private.CoreLib] System.Collections.Generic.Dictionary`2::Insert"
        with path.open("w") as file:
            file.writelines(f"{START + n * 64:x} 40 {name}{n}\n" for n in range(200_000))
        began_s = time.process_time()
        assert name_at(perf_map, START + 64 * 777 + 63) == f"{name}777"
        assert time.process_time() - began_s < 1

        tracemalloc.start()
        with contextlib.closing(PerfMap(path, os.geteuid(), OUR_ROOT)) as again:
            again.refresh()
            assert again.lookup(START) is not None
            taken_bytes, _peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken_bytes < 10 << 20


class TestHostile:
    """The file is written by a user and read by root."""

    def test_symlink_is_refused(self, path: Path, perf_map: PerfMap, tmp_path: Path) -> None:
        """The name may be a symlink to any file: it is not followed."""
        (tmp_path / "secret").write_text("1000 10 secret\n")
        path.symlink_to(tmp_path / "secret")
        assert name_at(perf_map, 0x1000) is None
        assert perf_map.losses == {"perf_map_refused": 1}

    def test_file_of_another_user_is_refused(self, path: Path) -> None:
        """/tmp belongs to all users: only the target's user may name its functions."""
        path.write_text("1000 10 false\n")
        if os.geteuid() == 0:
            os.chown(path, 4711, -1)
        perf_map = PerfMap(path, 4712, OUR_ROOT)
        # Root's own files are believed, and so the test cannot be made with them.
        assert os.stat(path).st_uid not in (0, 4712)
        assert name_at(perf_map, 0x1000) is None
        assert perf_map.losses == {"perf_map_refused": 1}

    def test_pipe_is_refused_and_does_not_block(self, path: Path, perf_map: PerfMap) -> None:
        """Only a regular file is read."""
        os.mkfifo(path)
        assert name_at(perf_map, 0x1000) is None
        assert perf_map.losses == {"perf_map_refused": 1}

    def test_sparse_gigabyte(self, path: Path, perf_map: PerfMap) -> None:
        """A gigabyte of nothing takes no memory and little time; what comes behind it is still found."""
        with path.open("wb") as file:
            file.write(b"1000 10 first\n")
            file.seek(1 << 30)
            file.write(b"\n2000 10 last\n")
        began_s = time.process_time()
        for _ in range(33):
            perf_map._due_s = 0.0
            perf_map.refresh()
        assert name_at(perf_map, 0x2000) == "last"
        assert time.process_time() - began_s < 2
        assert perf_map.losses["perf_map_skipped_bytes"] > 900 << 20
        assert perf_map.losses["perf_map_junk_lines"] > 0

    def test_entries_over_the_limit(self, path: Path) -> None:
        """The newest entries stay, and the others are counted."""
        path.write_text("".join(f"{n * 16 + 16:x} 10 f{n}\n" for n in range(1_000)))
        perf_map = PerfMap(path, os.geteuid(), OUR_ROOT, entries_max=23)
        assert name_at(perf_map, 1_000 * 16) == "f999"
        assert name_at(perf_map, 16) is None
        assert perf_map.losses == {"perf_map_dropped_entries": 977}

    def test_counts_never_fall(self, path: Path) -> None:
        """Rewritten, or replaced by a valid one: earlier losses stay counted."""
        path.write_text("junk\n" + "".join(f"{n * 16 + 16:x} 10 f{n}\n" for n in range(101)))
        perf_map = PerfMap(path, os.geteuid(), OUR_ROOT, entries_max=23)
        assert name_at(perf_map, 16 * 101) == "f100"
        path.unlink()
        os.mkfifo(path)
        perf_map.refresh()
        path.unlink()
        path.write_text("junk\n1000 10 new\n")
        assert name_at(perf_map, 0x1000) == "new"
        assert perf_map.losses == {
            "perf_map_junk_lines": 2,
            "perf_map_dropped_entries": 78,
            "perf_map_refused": 1,
        }

    def test_bytes_over_the_limit(self, path: Path) -> None:
        """Of a file that is too long the end is read, which is the newest part."""
        path.write_text("".join(f"{n * 16 + 16:08x} 10 f\n" for n in range(1_000)))
        perf_map = PerfMap(path, os.geteuid(), OUR_ROOT, read_limit_bytes=1_400)
        assert name_at(perf_map, 1_000 * 16) == "f"
        assert name_at(perf_map, 16) is None
        assert perf_map.losses["perf_map_skipped_bytes"] == 14_000 - 1_400

    def test_junk_lines_are_counted(self, path: Path, perf_map: PerfMap) -> None:
        """Other lines are skipped, and those around them read."""
        junk = ["", "junk", "1000", "1000 10", "xyz 10 a", "1000 -1 a", "1000 0 empty", "f" * 17 + " 10 wide"]
        path.write_text("1000 10 first\n" + "\n".join(junk) + "\n2000 10 last\n")
        assert [name_at(perf_map, a) for a in (0x1000, 0x2000)] == ["first", "last"]
        assert perf_map.losses == {"perf_map_junk_lines": len(junk)}

    def test_names_are_printable(self, path: Path, perf_map: PerfMap) -> None:
        """Escape sequences and undecodable bytes are shown as escapes; long names are cut."""
        path.write_bytes(b"1000 10 \x1b]0;owned\x07\xff\r\n2000 10 " + b"n" * 1_000_000 + b"\n")
        assert name_at(perf_map, 0x1000) == "\\x1b]0;owned\\x07\\xff"
        long_name = name_at(perf_map, 0x2000)
        assert long_name is not None
        assert len(long_name) == NAME_LIMIT_CHARACTERS

    def test_line_without_end(self, path: Path, perf_map: PerfMap) -> None:
        """A line that does not end is dropped, not kept forever."""
        path.write_bytes(b"1000 10 " + b"n" * 3_000_000 + b"\n2000 10 last\n")
        perf_map.refresh()
        assert name_at(perf_map, 0x2000) == "last"
        assert perf_map.losses["perf_map_junk_lines"] > 0

    @given(pieces=st.lists(st.binary(max_size=80), max_size=6))
    def test_random_bytes(self, tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]) -> None:
        """Whatever is appended, reading continues."""
        path = tmp_path_factory.mktemp("random") / "perf.map"
        perf_map = PerfMap(path, os.geteuid(), OUR_ROOT)
        for piece in pieces:
            with path.open("ab") as file:
                file.write(piece)
            perf_map.refresh()
            perf_map.lookup(0x1000)
        with path.open("ab") as file:
            file.write(b"\n1000 10 at last\n")
        # A pause comes first if Python collected garbage during a reading: that is processor time, too.
        until(lambda: name_at(perf_map, 0x1000) == "at last")
        perf_map.close()


def test_a_file_that_is_written_anew_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes a limited share of the time, however often it is requested; its final content is read.
    """
    monkeypatch.setattr(perf_map_module, "_SHORT_S", 0.0)
    path = tmp_path / "perf-23.map"
    path.write_text("1000 10 first\n")
    perf_map = PerfMap(path, os.getuid(), OUR_ROOT)
    perf_map.refresh()
    generation = perf_map.generation
    path.write_text("2000 10 second, another\n")
    perf_map._due_s = time.monotonic() + 60
    perf_map.refresh()
    assert perf_map.generation == generation
    perf_map._due_s = 0.0
    perf_map.refresh()
    found = perf_map.lookup(0x2000)
    assert found is not None
    assert found.name == "second, another"


def test_a_large_file_is_read_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time some of it, until all is known."""
    monkeypatch.setattr(perf_map_module, "_SLICE_BYTES", 1)
    monkeypatch.setattr(perf_map_module, "_CHUNK_BYTES", 64)
    path = tmp_path / "perf-23.map"
    path.write_text("".join(f"{number:x} 10 method{number}\n" for number in range(0x1000, 0x2000, 0x100)))
    perf_map = PerfMap(path, os.getuid(), OUR_ROOT)
    perf_map.refresh()
    assert perf_map.lookup(0x1F00) is None
    for _ in range(16):
        perf_map.refresh()
    found = perf_map.lookup(0x1F00)
    assert found is not None
    assert found.name == f"method{0x1F00}"
