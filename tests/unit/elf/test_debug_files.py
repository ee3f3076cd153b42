"""Separate debug files: found where distributions put them, and believed only if they belong."""

from __future__ import annotations

import lzma
import os
import shutil
from pathlib import Path, PurePosixPath

import pytest

from bpfleakd.elf import debug_files
from bpfleakd.elf.debug_files import debug_link, find_debug_file, has_line_tables, minidebug_image
from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.symbols import SymbolTable

from .building import compiled, nm, objcopy, output_of

SOURCE = """
static __attribute__((noinline)) int hidden(int n) { return n * 23; }
int main(int n, char **v) { return hidden(n); }
"""


def separated(directory: Path, *options: str) -> tuple[Path, Path]:
    """Return a stripped program with a debug link, and its debug file, both in `directory`."""
    program = compiled(directory, SOURCE, "-g", "-O1", *options)
    debug = directory / "program.debug"
    output_of("objcopy", "--only-keep-debug", program, debug)
    output_of("strip", program)
    return objcopy(program, f"--add-gnu-debuglink={debug}"), debug


def found_for(program: Path, root: Path = Path("/")) -> Path | None:
    path = "/" + str(program.relative_to(root))
    opened: list[Path] = []

    def open_candidate(candidate: PurePosixPath) -> int:
        descriptor = os.open(root / candidate, os.O_RDONLY | os.O_NONBLOCK)
        opened.append(root / candidate)
        return descriptor

    with ElfImage.open(program) as image:
        found = find_debug_file(image, path, open_candidate)
    if found is None:
        return None
    found.close()
    return opened[-1]


class TestDebugLink:
    """Debug files by their name."""

    def test_next_to_the_program(self, tmp_path: Path) -> None:
        """The file named in the link is found in the program's directory, with the stripped symbols."""
        program, debug = separated(tmp_path)
        assert found_for(program) == debug
        with ElfImage.open(program) as image, ElfImage.open(debug) as debug_image:
            assert SymbolTable([image]).addresses_of(["hidden"]) == {}
            assert SymbolTable([image, debug_image]).addresses_of(["hidden"]) == {
                "hidden": nm(debug)["hidden"]
            }
            assert (has_line_tables(image), has_line_tables(debug_image)) == (False, True)

    @pytest.mark.parametrize("place", ["srv/.debug", "usr/lib/debug/srv"])
    def test_in_a_directory_of_its_own_under_a_root(self, tmp_path: Path, place: str) -> None:
        """It is found in .debug and under usr/lib/debug of the target's root directory too."""
        (tmp_path / "srv").mkdir()
        (tmp_path / place).mkdir(parents=True)
        program, debug = separated(tmp_path / "srv")
        moved = debug.rename(tmp_path / place / debug.name)
        assert found_for(program, tmp_path) == moved

    def test_checksum_decides_without_build_ids(self, tmp_path: Path) -> None:
        """Without build-ids the CRC has to be right: another build's debug file is not believed."""
        program, debug = separated(tmp_path, "-Wl,--build-id=none")
        assert found_for(program) == debug
        debug.write_bytes(debug.read_bytes() + b"\0")
        assert found_for(program) is None

    def test_link_to_the_program_itself(self, tmp_path: Path) -> None:
        """A link that leads to the stripped program itself leads nowhere."""
        program, debug = separated(tmp_path)
        shutil.copy(program, debug)
        assert found_for(program) is None

    @pytest.mark.parametrize("name", [b"../program.debug", b"/etc/passwd", b"..", b"", b"n" * 300])
    def test_link_out_of_the_directory_is_refused(self, tmp_path: Path, name: bytes) -> None:
        """A link is a file name: paths in it are not followed."""
        section, program = tmp_path / "section", compiled(tmp_path, SOURCE)
        section.write_bytes((name + b"\0").ljust(len(name) + 4 & ~3, b"\0") + bytes(4))
        objcopy(program, "--add-section", f".gnu_debuglink={section}")
        with ElfImage.open(program) as image:
            assert debug_link(image) is None

    def test_pipe_with_the_right_name(self, tmp_path: Path) -> None:
        """A candidate that is not a regular file is skipped without blocking."""
        program, debug = separated(tmp_path)
        debug.unlink()
        os.mkfifo(debug)
        assert found_for(program) is None


class TestBuildId:
    """Debug files by build-id."""

    def test_under_the_targets_root(self, tmp_path: Path) -> None:
        """usr/lib/debug/.build-id of the target's root is looked into."""
        program, debug = separated(tmp_path)
        place = self.place_for(program, tmp_path)
        debug.rename(place)
        assert found_for(program, tmp_path) == place

    def test_other_build_id_is_refused(self, tmp_path: Path) -> None:
        """A file at the right place with another build-id is not this program's."""
        program, debug = separated(tmp_path)
        place = self.place_for(program, tmp_path)
        debug.unlink()
        (tmp_path / "other").mkdir()
        _, other = separated(tmp_path / "other", "-DOTHER", "-Wl,--build-id=0x" + 20 * "23")
        other.rename(place)
        assert found_for(program, tmp_path) is None

    @staticmethod
    def place_for(program: Path, root: Path) -> Path:
        with ElfImage.open(program) as image:
            build_id = image.build_id
        assert build_id is not None
        place = root / "usr/lib/debug/.build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        place.parent.mkdir(parents=True)
        return place


class TestMinidebuginfo:
    """Symbols that travel in the file itself."""

    def packed(self, directory: Path, data: bytes) -> ElfImage:
        program, section = compiled(directory, SOURCE), directory / "section"
        section.write_bytes(data)
        return ElfImage.open(objcopy(program, "--strip-all", "--add-section", f".gnu_debugdata={section}"))

    def test_symbols_inside(self, tmp_path: Path) -> None:
        """The local functions of a stripped program come from .gnu_debugdata."""
        (tmp_path / "full").mkdir()
        full = compiled(tmp_path / "full", SOURCE)
        with self.packed(tmp_path, lzma.compress(full.read_bytes())) as image:
            mini = minidebug_image(image)
            assert mini is not None
            assert SymbolTable([image, mini]).addresses_of(["hidden"]) == {"hidden": nm(full)["hidden"]}

    @pytest.mark.parametrize("data", [b"", b"junk", lzma.compress(b"no ELF"), lzma.compress(b"x" * 99)[:-9]])
    def test_broken_ones(self, tmp_path: Path, data: bytes) -> None:
        """A broken xz stream, or one without an ELF file inside, counts as absent."""
        with self.packed(tmp_path, data or b"\0") as image:
            assert minidebug_image(image) is None

    def test_decompression_is_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stream that grows beyond the limit is given up."""
        full = compiled(tmp_path, SOURCE).read_bytes()
        monkeypatch.setattr(debug_files, "MINIDEBUG_LIMIT_BYTES", len(full) - 1)
        with self.packed(tmp_path, lzma.compress(full)) as image:
            assert minidebug_image(image) is None

    def test_without(self, tmp_path: Path) -> None:
        """Most files have none."""
        with ElfImage.open(compiled(tmp_path, SOURCE)) as image:
            assert minidebug_image(image) is None
