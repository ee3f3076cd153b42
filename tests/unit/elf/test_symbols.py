"""Symbol tables: nm is the truth."""

from __future__ import annotations

import os
import re
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.elf import symbols as symbols_module
from bpfleakd.elf.image import ElfImage
from bpfleakd.elf.symbols import Symbol, SymbolTable
from bpfleakd.errors import BadElf

from .building import assembled, compiled, nm, output_of

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


def table_of(path: Path) -> SymbolTable:
    return SymbolTable([ElfImage.open(path)])


def function(name: str, body: str = "ret", *, scope: str = ".globl", sized: bool = True) -> str:
    size = f".size {name}, . - {name}\n" if sized else ""
    return f"{scope} {name}\n.type {name}, @function\n{name}: {body}\n{size}"


class TestLookup:
    """From an address to a function."""

    def test_every_function_of_libc(self) -> None:
        """Every byte range that readelf gives for a function of libc leads back to one of its names."""
        rows = re.findall(
            r": ([0-9a-f]{16}) +(\d+) FUNC +\w+ +DEFAULT +\d+ ([^@\s]+)",
            output_of("readelf", "-W", "--dyn-syms", LIBC),
        )
        names: dict[tuple[int, int], set[str]] = {}
        for address, size, name in rows:
            names.setdefault((int(address, 16), int(size)), set()).add(name)
        assert len(names) > 1000

        table = table_of(LIBC)
        for (address, size), aliases in names.items():
            for vaddr in (address, address + size - 1):
                found = table.lookup(vaddr)
                assert found is not None
                assert (found.vaddr, found.size_bytes) == (address, size)
                assert found.name in aliases

    @pytest.mark.parametrize("options", [["-no-pie"], ["-pie", "-fPIE"]])
    def test_local_functions_of_a_program(self, tmp_path: Path, options: list[str]) -> None:
        """Static functions are in .symtab alone, whether the program is at a fixed address or not."""
        source = "static __attribute__((noinline)) int hidden(int n) { return n * 23; }\n"
        path = compiled(tmp_path, source + "int main(int n, char **v) { return hidden(n); }", *options)
        addresses = nm(path)
        table = table_of(path)
        for name in ("hidden", "main"):
            found = table.lookup(addresses[name] + 1)
            assert found is not None
            assert (found.name, found.vaddr) == (name, addresses[name])

    def test_stripped_file_has_its_exported_functions(self, tmp_path: Path) -> None:
        """Without .symtab, .dynsym is left."""
        path = assembled(tmp_path, function("seen") + function("unseen", scope=".local"))
        output_of("strip", path)
        assert set(nm(path, "-D")) == {"seen"}
        assert table_of(path).addresses_of(["seen", "unseen"]) == {"seen": nm(path, "-D")["seen"]}

    def test_malloc_is_called_malloc(self) -> None:
        """malloc and __libc_malloc are one function; the former name is shown."""
        addresses = nm(LIBC, "-D")
        assert addresses["malloc"] == addresses["__libc_malloc"]
        found = table_of(LIBC).lookup(addresses["malloc"])
        assert found is not None
        assert found.name == "malloc"

    def test_preferred_alias(self, tmp_path: Path) -> None:
        """Global is better than local, then no underscores, then the shorter name."""
        aliases = [".globl _a", ".globl long_name", ".globl name", ".globl __name"]
        source = "\n".join(aliases) + "\n.local x\n_a: long_name: name: __name: x: " + function("other")
        found = table_of(assembled(tmp_path, source)).lookup(nm(tmp_path / "program")["x"])
        assert found is not None
        assert found.name in ("name", "other")

        source = ".local x\nx: _exported_name: " + function("_exported_name", "ret").replace(
            "_exported_name: ret", "ret"
        )
        found = table_of(assembled(tmp_path, source)).lookup(nm(tmp_path / "program")["x"])
        assert found is not None
        assert found.name == "_exported_name"

    def test_sized_symbol_around_a_label(self, tmp_path: Path) -> None:
        """A label inside a function does not end the function."""
        body = "nop; nop\ninside: nop; nop; ret"
        path = assembled(tmp_path, function("outer", body))
        table = table_of(path)
        outer = nm(path)["outer"]
        assert [table.lookup(outer + n) for n in range(6)] == [Symbol("outer", outer, 5)] * 5 + [None]

    def test_inner_function_wins(self, tmp_path: Path) -> None:
        """Of two functions around an address the inner one wins; after it, the outer one again."""
        inner = function("inner", "nop")
        path = assembled(tmp_path, function("outer", f"nop\n{inner}\nnop; ret"))
        table = table_of(path)
        outer = nm(path)["outer"]
        names = [symbol.name for n in range(4) if (symbol := table.lookup(outer + n))]
        assert names == ["outer", "inner", "outer", "outer"]

    def test_unsized_symbols_reach_to_the_next(self, tmp_path: Path) -> None:
        """Assembly without sizes: up to the next symbol, and the last one to the end of its section."""
        source = function("first", "nop; nop; ret", sized=False) + function("last", "nop; ret", sized=False)
        path = assembled(tmp_path, source)
        first = nm(path)["first"]
        table = table_of(path)
        assert table.lookup(first + 2) == Symbol("first", first, 3)
        assert table.lookup(first + 4) == Symbol("last", first + 3, 2)
        assert table.lookup(first + 5) is None

    def test_nothing_between_functions(self, tmp_path: Path) -> None:
        """Padding belongs to no function, nor does anything outside."""
        path = assembled(tmp_path, function("first") + ".balign 64\n" + function("second"))
        first = nm(path)["first"]
        table = table_of(path)
        assert [bool(table.lookup(first + n)) for n in (-1, 0, 1, 63, 64, 65)] == [0, 1, 0, 0, 1, 0]
        assert table.lookup(-1) is None
        assert table.lookup(1 << 63) is None

    def test_data_is_no_function(self, tmp_path: Path) -> None:
        """Objects and labels in data sections have no part in it."""
        path = assembled(tmp_path, function("code") + ".data\n.globl words\nwords: .quad 23, 23\n")
        table = table_of(path)
        assert len(table) == 1
        assert table.lookup(nm(path)["code"]) is not None

    def test_name_of_a_hostile_function_is_printable(self, tmp_path: Path) -> None:
        """Escape sequences in a name are shown as such, and a name of a megabyte is cut."""
        path = assembled(tmp_path, function('"\x1b]0;owned\x07"') + function("n" * 100_000))
        table = table_of(path)
        start = nm(path)["n" * 100_000] - 1
        names = [symbol.name for n in (0, 1) if (symbol := table.lookup(start + n))]
        assert names[0] == "\\x1b]0;owned\\x07"
        assert len(names[1]) <= symbols_module.NAME_LIMIT_CHARACTERS


class TestSearch:
    """From names to addresses."""

    def test_addresses_are_those_of_nm(self) -> None:
        """The allocator functions of libc are where nm says; unknown names are left out."""
        wanted = ["malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "memalign"]
        expected = {name: nm(LIBC, "-D")[name] for name in wanted}
        assert table_of(LIBC).addresses_of([*wanted, "no_such_function"]) == expected

    def test_names_that_share_their_end(self, tmp_path: Path) -> None:
        """The linker stores `alloc` in the tail of `my_alloc`; neither is mistaken for the other."""
        names = ["alloc", "my_alloc", "not_my_alloc", "al", "alloc2"]
        path = assembled(tmp_path, "".join(map(function, names)))
        expected = nm(path)
        assert table_of(path).addresses_of(names) == {name: expected[name] for name in names}

    def test_local_functions_only_without_a_global_one(self, tmp_path: Path) -> None:
        """An allocator that was linked in with hidden symbols is found, but an exported one is better."""
        local = compiled(
            tmp_path,
            '__attribute__((visibility("hidden"), noinline)) void *my_malloc(long n) { return (void *)n; }\n'
            "void *use(long n) { return my_malloc(n + 1); }",
            "-shared",
            "-fPIC",
        )
        assert table_of(local).addresses_of(["my_malloc"]) == {"my_malloc": nm(local)["my_malloc"]}

        one, two = tmp_path / "one.s", tmp_path / "two.s"
        one.write_text(".local release\n" + function("release", "nop; ret", scope=".local"))
        two.write_text(function("release"))
        both = tmp_path / "both"
        output_of("gcc", "-shared", "-nostdlib", "-o", both, one, two)
        exported = nm(both, "-D")["release"]
        assert table_of(both).addresses_of(["release"]) == {"release": exported}

    def test_default_version_is_meant(self, tmp_path: Path) -> None:
        """Of a function with two versions the default one is found, with and without .symtab."""
        source = (
            '__asm__(".symver old_get, get@V1"); __asm__(".symver new_get, get@@V2");\n'
            "int old_get(void) { return 1; } int new_get(void) { return 23; }"
        )
        script = tmp_path / "script"
        script.write_text("V1 { global: get; };\nV2 { global: get; } V1;\n")
        path = compiled(tmp_path, source, "-shared", "-fPIC", f"-Wl,--version-script={script}")
        expected = int(re.findall(r"^(\w+) T get@@V2$", output_of("nm", "-D", path), re.MULTILINE)[0], 16)

        assert table_of(path).addresses_of(["get"]) == {"get": expected}
        output_of("strip", path)
        assert table_of(path).addresses_of(["get"]) == {"get": expected}

    def test_indirect_functions_are_not_given(self, tmp_path: Path) -> None:
        """The address of an indirect function is that of its resolver, where a probe would be wrong."""
        source = "int one(void) { return 1; } static void *choose(void) { return one; }\n"
        source += 'int chosen(void) __attribute__((ifunc("choose")));'
        table = table_of(compiled(tmp_path, source, "-shared", "-fPIC"))
        assert set(table.addresses_of(["one", "chosen"])) == {"one"}

    def test_undefined_functions_are_not_given(self, tmp_path: Path) -> None:
        """A function that is only called is in the table of another file."""
        path = compiled(tmp_path, "#include <stdlib.h>\nint main(void) { return malloc(1) == 0; }")
        assert table_of(path).addresses_of(["malloc", "main"]).keys() == {"main"}


class TestLimits:
    """Large files and hostile ones."""

    def test_many_functions_take_13_bytes_each(self, tmp_path: Path) -> None:
        """Forty thousand functions are numbers in arrays, made in less than half a second."""
        path = assembled(tmp_path, "".join(function(f"function_number_{n}") for n in range(40_009)))
        began_s = time.process_time()
        table = table_of(path)
        took_s = time.process_time() - began_s
        assert len(table) == 40_009
        assert table.size_bytes == 13 * 40_009
        assert took_s < 0.5

    def test_functions_over_the_limit_are_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Functions beyond the limit are omitted and counted."""
        path = assembled(tmp_path, "".join(function(f"f{n}") for n in range(70_000)))
        monkeypatch.setattr(symbols_module, "FUNCTIONS_MAX", 100)
        table = table_of(path)
        assert 0 < len(table) < 70_000
        assert table.omitted >= 70_000 - len(table)

    @given(
        name=st.sampled_from([".symtab", ".dynsym", ".strtab", ".dynstr", ".gnu.version"]),
        field=st.sampled_from([4, 8, 16, 24, 32, 40, 44, 48, 56]),
        value=st.integers(0, (1 << 64) - 1),
    )
    def test_hostile_section_headers(self, small: Path, name: str, field: int, value: int) -> None:
        """Wild offsets, sizes, types and links of the symbol sections raise nothing but BadElf."""
        data = bytearray(small.read_bytes())
        with ElfImage.open(small) as image:
            index = ["", *image.section_names].index(name)
        position = struct.unpack_from("<Q", data, 40)[0] + 64 * index + field
        width = 4 if field in (4, 40, 44) else 8
        data[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
        _search(bytes(data))

    @given(st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=24)), max_size=6))
    def test_hostile_symbols(self, small: Path, changes: list[tuple[int, bytes]]) -> None:
        """Symbols with wild values, sizes, names and sections raise nothing at all."""
        data = bytearray(small.read_bytes())
        with ElfImage.open(small) as image:
            symtab = image.section(".symtab")
            assert symtab is not None
            for position, change in changes:
                start = symtab.file_offset + position % symtab.size_bytes
                data[start : start + len(change)] = change
        _search(bytes(data))

    def test_file_truncated_while_open(self, tmp_path: Path) -> None:
        """Names are read on request: if they are gone by then, BadElf is raised."""
        path = assembled(tmp_path, function("here"))
        address = nm(path)["here"]
        table = table_of(path)
        os.truncate(path, 64)
        with pytest.raises(BadElf):
            table.lookup(address)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("small")
    script = directory / "script"
    script.write_text("V1 { global: *; };\n")
    source = "".join(function(name) for name in ("malloc", "free", "calloc", "my_malloc"))
    return assembled(directory, source, f"-Wl,--version-script={script}")


def _search(data: bytes) -> None:
    try:
        table = SymbolTable([ElfImage.from_bytes(data, "hostile")])
        for address in (*table.addresses_of(["malloc", "free"]).values(), 0, 0x1000, 0x1001, 1 << 40):
            table.lookup(address)
    except BadElf:
        pass
