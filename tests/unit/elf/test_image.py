"""ELF images: the same results as readelf for valid files, and `BadElf` for everything else."""

from __future__ import annotations

import os
import re
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.elf import section as section_module
from bpfleakd.elf.image import EM_386, EM_X86_64, ElfImage
from bpfleakd.elf.symbols import SymbolTable
from bpfleakd.errors import BadElf

from .building import assembled, compiled, objcopy, output_of

MAIN = "int zeroes[1000]; int main(void) { return 0; }"
# Enough of the same for compression to be worth it.
REPETITIVE = MAIN + "".join(f"int function_number_{n}(int n) {{ return n + {n}; }}" for n in range(100))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("elf"), REPETITIVE, "-g")


def look_at_everything(image: ElfImage) -> None:
    """Read everything that an image has; raises BadElf on errors."""
    _ = image.build_id, image.segments, image.section_names, image.is_static, image.is_go
    for offset in (0, 0x1000, 1 << 40):
        image.vaddr_of(offset)
        image.file_offset_of(offset)
        image.read(offset, 64)
    for name in image.section_names:
        section = image.section(name)
        assert section is not None
        assert len(section.data) >= 0
    SymbolTable([image]).addresses_of(["main", "malloc"])


def survives(data: bytes) -> bool:
    """Whether the bytes are an image; any other exception than BadElf fails the test."""
    try:
        look_at_everything(ElfImage.from_bytes(data, "hostile"))
    except BadElf:
        return False
    return True


class TestSaneFiles:
    """Files as compilers and linkers make them."""

    def test_sections_are_those_of_readelf(self, program: Path) -> None:
        """Names, addresses, offsets and sizes of all sections are what readelf lists."""
        row = r"^ *\[ *\d+\] (\S+) +\S+ +([0-9a-f]{16}) ([0-9a-f]{6,}) ([0-9a-f]{6,}) "
        listed = re.findall(row, output_of("readelf", "-SW", program), re.MULTILINE)

        with ElfImage.open(program) as image:
            found = [(s.name, s.vaddr, s.file_offset, s.size_bytes) for s in image.sections[1:]]

        assert found == [(name, *(int(number, 16) for number in rest)) for name, *rest in listed]

    def test_build_id_is_that_of_readelf(self, program: Path) -> None:
        """The build-id is the hex number in the GNU note."""
        (build_id,) = re.findall(r"Build ID: (\w+)", output_of("readelf", "-n", program))
        with ElfImage.open(program) as image:
            assert image.build_id == build_id

    def test_build_id_without_section_headers(self, program: Path, tmp_path: Path) -> None:
        """Without section headers the build-id comes from the PT_NOTE segment."""
        data = bytearray(program.read_bytes())
        data[40:48] = bytes(8)  # e_shoff
        data[60:64] = bytes(4)  # e_shnum, e_shstrndx

        with ElfImage.open(program) as whole, ElfImage.from_bytes(bytes(data), "cut") as cut:
            assert cut.section_names == ()
            assert cut.build_id == whole.build_id

    def test_no_build_id(self, tmp_path: Path) -> None:
        """A file linked without a build-id has None."""
        with ElfImage.open(compiled(tmp_path, MAIN, "-Wl,--build-id=none")) as image:
            assert image.build_id is None

    @pytest.mark.parametrize(
        ("options", "static"),
        [
            (["-no-pie"], False),
            (["-pie", "-fPIE"], False),
            (["-shared", "-fPIC"], False),
            (["-static"], True),
            (["-static-pie"], True),
        ],
    )
    def test_static_is_what_no_loader_touches(self, tmp_path: Path, options: list[str], static: bool) -> None:
        """Static programs are distinguished from dynamic ones, and static-pie from libraries."""
        with ElfImage.open(compiled(tmp_path, MAIN, *options)) as image:
            assert image.is_static is static
            assert image.machine == EM_X86_64

    @pytest.mark.parametrize("options", [["-no-pie"], ["-pie", "-fPIE"]])
    def test_offsets_and_addresses_are_inverse(self, tmp_path: Path, options: list[str]) -> None:
        """A section's file offset and address translate into each other, in PIE and at fixed addresses."""
        with ElfImage.open(compiled(tmp_path, MAIN, *options)) as image:
            for name in (".text", ".rodata", ".data"):
                section = image.section(name)
                assert section is not None
                assert image.vaddr_of(section.file_offset) == section.vaddr
                assert image.file_offset_of(section.vaddr) == section.file_offset

    def test_addresses_outside_have_no_offset(self, program: Path) -> None:
        """Zeroes behind a segment's file part are in no file, and nothing is behind the file."""
        with ElfImage.open(program) as image:
            bss = image.section(".bss")
            assert bss is not None
            assert image.file_offset_of(bss.vaddr + 0x800) is None
            assert image.vaddr_of(1 << 40) is None
            assert image.read(1 << 40, 16) == b""

    def test_read_gives_the_bytes_at_an_address(self, program: Path) -> None:
        """`read` and the section's data agree; at the end of a segment there are fewer bytes."""
        with ElfImage.open(program) as image:
            text = image.section(".text")
            assert text is not None
            assert image.read(text.vaddr, 64) == bytes(text.data[:64])
            segment = next(segment for segment in image.segments if segment.executable)
            assert len(image.read(segment.vaddr + segment.file_size_bytes - 3, 64)) == 3

    def test_section_without_bytes_is_empty(self, program: Path) -> None:
        """.bss has a size and no data."""
        with ElfImage.open(program) as image:
            bss = image.section(".bss")
            assert bss is not None
            assert bss.size_bytes >= 4000
            assert len(bss.data) == 0
            assert image.section(".nowhere") is None

    def test_compressed_section_is_decompressed(self, program: Path, tmp_path: Path) -> None:
        """Compressed debug sections have the data of the plain ones."""
        packed = tmp_path / "packed"
        output_of("objcopy", "--compress-debug-sections=zlib", program, packed)
        with ElfImage.open(program) as plain, ElfImage.open(packed) as image:
            for name in (".debug_info", ".debug_str"):
                expected, found = plain.section(name), image.section(name)
                assert expected is not None
                assert found is not None
                assert found.data == expected.data
                assert found.size_bytes < expected.size_bytes

    def test_32bit_file(self, tmp_path: Path) -> None:
        """The other ELF class has its own layouts."""
        source, objects, path = tmp_path / "a.s", tmp_path / "a.o", tmp_path / "a"
        source.write_text(".text\n.globl _start\n.type _start,@function\n_start: nop\nret\n.size _start,2\n")
        output_of("as", "--32", "-o", objects, source)
        output_of("ld", "-m", "elf_i386", "-o", path, objects)
        with ElfImage.open(path) as image:
            assert image.machine == EM_386
            assert image.is_static
            start = SymbolTable([image]).addresses_of(["_start"])["_start"]
            assert image.read(start, 2) == b"\x90\xc3"

    def test_go_is_recognised(self, program: Path, tmp_path: Path) -> None:
        """The sections of the Go linker are recognised."""
        note, copy = tmp_path / "note", tmp_path / "go"
        note.write_bytes(b"go")
        copy.write_bytes(program.read_bytes())
        objcopy(copy, "--add-section", f".go.buildinfo={note}")
        with ElfImage.open(program) as c, ElfImage.open(copy) as go:
            assert (c.is_go, go.is_go) == (False, True)

    def test_python_itself_can_be_read(self) -> None:
        """A large real program survives all questions."""
        with ElfImage.open(os.path.realpath(sys.executable)) as image:
            look_at_everything(image)


class TestOpening:
    """Files that can be opened."""

    def test_descriptor_stays_the_callers(self, program: Path) -> None:
        """An image made of a descriptor can be closed without closing that."""
        with program.open("rb") as file:
            ElfImage.open(file.fileno()).close()
            assert os.fstat(file.fileno()).st_size > 0

    def test_pipe_is_refused_and_does_not_block(self, tmp_path: Path) -> None:
        """Only regular files are opened: a pipe would wait for a writer."""
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(BadElf, match="not a regular file"):
            ElfImage.open(tmp_path / "pipe")

    @pytest.mark.parametrize("path", ["/dev/null", "/tmp"])
    def test_devices_and_directories_are_refused(self, path: str) -> None:
        """Devices neither, since opening them may have effects."""
        with pytest.raises(BadElf, match="not a regular file"):
            ElfImage.open(path)

    def test_missing_file_is_an_os_error(self, tmp_path: Path) -> None:
        """A file that is not there is not a bad one."""
        with pytest.raises(FileNotFoundError):
            ElfImage.open(tmp_path / "none")

    def test_closed_image_reads_nothing(self, program: Path) -> None:
        """After `close` there is BadElf and no read of whatever has the descriptor's number now."""
        image = ElfImage.open(program)
        image.close()
        image.close()
        with program.open("rb"), pytest.raises(BadElf):
            image.read(image.segments[0].vaddr, 1)


class TestHostileFiles:
    """Whatever is wrong with a file is a BadElf."""

    def test_cut_at_every_header_boundary(self, tmp_path: Path) -> None:
        """A file cut anywhere in or around its headers, tables and sections is refused or readable."""
        data = assembled(tmp_path, ".globl f\n.type f,@function\nf: ret\n.size f,1\n").read_bytes()
        with ElfImage.from_bytes(data, "whole") as image:
            ends = {0, 16, 64, *(64 + 56 * index for index in range(20))}
            ends |= {s.file_offset for s in image.sections}
            ends |= {s.file_offset + s.size_bytes for s in image.sections}
            table = struct.unpack_from("<Q", data, 40)[0]
            ends |= {table + 64 * index for index in range(len(image.sections) + 1)}

        assert survives(data)
        for end in ends:
            for cut in (end - 1, end, end + 1):
                if 0 <= cut < len(data):
                    assert not survives(data[:cut])

    @given(data=st.binary(max_size=512))
    def test_random_bytes(self, data: bytes) -> None:
        """Bytes without meaning, also behind a right beginning, raise nothing but BadElf."""
        survives(data)
        survives(b"\x7fELF\x02\x01\x01" + bytes(9) + data)
        survives(b"\x7fELF\x01\x02\x01" + bytes(9) + data)

    @given(st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), max_size=8))
    def test_random_damage(self, program: Path, changes: list[tuple[int, bytes]]) -> None:
        """A real program with bytes changed anywhere raises nothing but BadElf."""
        data = bytearray(program.read_bytes())
        for position, change in changes:
            position %= len(data)
            data[position : position + len(change)] = change
        survives(bytes(data))

    @given(table=st.sampled_from(["headers", "sections"]), position=st.integers(0, 4096), value=st.integers())
    def test_damaged_headers(self, program: Path, table: str, position: int, value: int) -> None:
        """Headers with wild numbers in their fields raise nothing but BadElf."""
        data = bytearray(program.read_bytes())
        start, size_bytes = (0, 800) if table == "headers" else (struct.unpack_from("<Q", data, 40)[0], 2000)
        position = start + position % size_bytes // 8 * 8
        data[position : position + 8] = (value % (1 << 64)).to_bytes(8, "little")[: len(data) - position]
        survives(bytes(data))

    def test_section_beyond_the_file(self, program: Path) -> None:
        """A section that ends beyond the file has no data, and reports this."""
        data = _with_section_size(program.read_bytes(), ".text", 1 << 40)
        with ElfImage.from_bytes(data, "hostile") as image, pytest.raises(BadElf):
            _ = image.section(".text").data  # type: ignore[union-attr]

    def test_huge_section_is_not_read(self, program: Path, tmp_path: Path) -> None:
        """A section of a terabyte, in a sparse file that really has it, is refused before it is read."""
        path = tmp_path / "sparse"
        path.write_bytes(_with_section_size(program.read_bytes(), ".text", 1 << 40))
        os.truncate(path, 1 << 41)
        with ElfImage.open(path) as image, pytest.raises(BadElf, match="more than"):
            _ = image.section(".text").data  # type: ignore[union-attr]

    def test_decompression_has_a_limit(
        self, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A compressed section that declares more than the limit, or other than it has, is refused."""
        path = tmp_path / "packed"
        output_of("objcopy", "--compress-debug-sections=zlib", program, path)
        with ElfImage.open(path) as image:
            debug = image.section(".debug_str")
            assert debug is not None
            data = bytearray(path.read_bytes())
            data[debug.file_offset + 8 : debug.file_offset + 16] = (23).to_bytes(8, "little")
            with (
                ElfImage.from_bytes(bytes(data), "liar") as liar,
                pytest.raises(BadElf, match="does not decompress"),
            ):
                _ = liar.section(".debug_str").data  # type: ignore[union-attr]
            monkeypatch.setattr(section_module, "SECTION_LIMIT_BYTES", debug.size_bytes + 1)
            with pytest.raises(BadElf, match="more than"):
                _ = debug.data

    def test_file_truncated_while_open(self, program: Path, tmp_path: Path) -> None:
        """A file that shrinks under us (an upgrade in place) is a BadElf, not the end of the daemon."""
        path = tmp_path / "shrinking"
        path.write_bytes(program.read_bytes())
        with ElfImage.open(path) as image:
            text = image.section(".text")
            os.truncate(path, 100)
            with pytest.raises(BadElf, match="ends at"):
                _ = text.data  # type: ignore[union-attr]


def _with_section_size(data: bytes, name: str, size_bytes: int) -> bytes:
    with ElfImage.from_bytes(data, "original") as image:
        index = ["", *image.section_names].index(name)
    changed = bytearray(data)
    table = struct.unpack_from("<Q", data, 40)[0]
    struct.pack_into("<Q", changed, table + 64 * index + 32, size_bytes)
    return bytes(changed)
