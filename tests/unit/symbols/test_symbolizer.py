"""Stacks with names: of files laid out as the loader does, of our own process and of a child."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from bpfleakd.elf.image import ElfImage
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.stack import Frame, FrameKind, RawStack, Stack, StackEnd
from bpfleakd.process.files.mapped_files import open_mapped
from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.symbols.module_cache import ModuleCache
from bpfleakd.symbols.name_service import NameService
from bpfleakd.symbols.perf_map import PerfMap
from bpfleakd.symbols.symbolizer import Symbolizer

from ..elf.building import assembled, compiled, nm, output_of
from ..helping import helpers
from .opening import open_file

OUR_ROOT = TargetRoot(os.getpid(), Path("/"))

BASE = 0x7F0000000000
NAMES = NameService(helpers())
COUNT = itertools.count()
JIT = Mapping(0x10000, 0x20000, 0, "00:00", 0, "", True, False, True)
VDSO_ROW = next(row for row in Path("/proc/self/maps").read_text().splitlines() if row.endswith("[vdso]"))


def laid_out(path: Path, base: int = BASE) -> list[Mapping]:
    """The mappings that the loader makes of a file at an address, in pages."""
    inode = path.stat().st_ino
    with ElfImage.open(path) as image:
        segments = image.segments
    return [
        Mapping(
            start=base + segment.vaddr // 4096 * 4096,
            end=base + -(-(segment.vaddr + segment.file_size_bytes) // 4096) * 4096,
            offset=segment.file_offset // 4096 * 4096,
            device="08:01",
            inode=inode,
            path=str(path),
            readable=True,
            writable=False,
            executable=segment.executable,
        )
        for segment in segments
    ]


def mappings_of(pid: int | str) -> list[Mapping]:
    """The mappings of a process, from /proc, parsed with as little code as possible."""
    mappings = []
    for row in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, offset, device, inode, *path = row.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        r, w, x = (letter in rights for letter in "rwx")
        name = path[0] if path else ""
        mappings.append(Mapping(start, end, int(offset, 16), device, int(inode), name, r, w, x))
    return mappings


def symbolizer_of(mappings: list[Mapping], **options: object) -> Symbolizer:
    options.setdefault("names", NAMES)
    # Each has its own files, so that one test does not affect the next.
    owner = f"test {next(COUNT)}"
    symbolizer = Symbolizer(owner, lambda mapping: open_file(Path(mapping.path)), ModuleCache(), **options)
    symbolizer.update_mappings(mappings)
    return symbolizer


def frames_of(symbolizer: Symbolizer, *addresses: int) -> tuple[Frame, ...]:
    return one(symbolizer, *addresses).frames


def one(symbolizer: Symbolizer, *addresses: int, end: StackEnd = StackEnd.BOTTOM) -> Stack:
    symbolizer.symbolize([RawStack(addresses, end)])
    assert symbolizer.wait(30)
    (stack,) = symbolizer.symbolize([RawStack(addresses, end)])
    return stack


def functions(symbolizer: Symbolizer, *addresses: int) -> list[str | None]:
    return [frame.function for frame in frames_of(symbolizer, *addresses)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two functions, of which the first ends in a call, as it does before code that never returns."""
    first = ".globl first\n.type first,@function\nfirst: nop; call second\n.size first, . - first\n"
    second = ".globl second\n.type second,@function\nsecond: nop; ret\n.size second, . - second\n"
    return assembled(tmp_path_factory.mktemp("library"), first + second + "nop; nop\n")


class TestNative:
    """Code in ELF files."""

    def test_return_addresses_are_looked_up_one_byte_before(self, library: Path) -> None:
        """An exact address is looked up as it is; a return address belongs to the call before it."""
        second = nm(library)["second"]
        symbolizer = symbolizer_of(laid_out(library))

        stack = one(symbolizer, BASE + second, BASE + second)

        assert [frame.function for frame in stack.frames] == ["second", "first"]
        assert stack.frames[1] == Frame(
            function="first",
            module=library.name,
            offset=second,
            location=None,
            address=BASE + second,
            kind=FrameKind.NATIVE,
        )
        with ElfImage.open(library) as image:
            assert stack.build_ids == (image.build_id, image.build_id)
        assert stack.truncated is None

    def test_call_at_the_very_end_of_a_mapping(self, library: Path) -> None:
        """A return address may be the first byte that is mapped no more."""
        (code,) = (mapping for mapping in laid_out(library) if mapping.executable)
        symbolizer, end = symbolizer_of([code]), code.end
        assert symbolizer.covers([end])
        assert frames_of(symbolizer, BASE + nm(library)["second"], end)[1].module == library.name
        assert symbolizer.unknown_addresses == 0

    def test_address_without_symbol(self, library: Path) -> None:
        """An address without a symbol has its module and the offset in it."""
        behind = nm(library)["second"] + 2
        (frame,) = frames_of(symbolizer_of(laid_out(library)), BASE + behind)
        assert (frame.function, frame.module, frame.offset) == (None, library.name, behind)
        assert frame.kind is FrameKind.NATIVE

    def test_an_installed_library_below_the_root_of_a_chroot(self, tmp_path: Path) -> None:
        """/proc puts the root's path before that of the library, which the program sees in /usr/lib."""
        place = tmp_path / "usr" / "lib"
        place.mkdir(parents=True)
        library = assembled(place, ".globl f\n.type f,@function\nf: nop; ret\n.size f, . - f\n")
        library = library.rename(place / "libjail.so.1")
        address = BASE + nm(library)["f"]
        (frame,) = frames_of(symbolizer_of(laid_out(library), root_path=str(tmp_path)), address)
        assert (frame.function, frame.is_library) == ("f", True)
        (frame,) = frames_of(symbolizer_of(laid_out(library)), address)
        assert not frame.is_library

    def test_names_that_cannot_be_found_are_not_awaited(
        self, library: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file that helpers cannot read gives an answer at once, and names later."""
        lookup, now_s, asked = helpers(), [0.0], threading.Event()
        answers = lookup.answers

        def failing(*_arguments: object, **_limits: object) -> Iterator[object]:
            asked.wait()
            raise HelperFailed("no answer in time")

        monkeypatch.setattr(lookup, "answers", failing)
        names = NameService(lookup, lambda: now_s[0])
        second = BASE + nm(library)["second"]
        symbolizer = symbolizer_of(laid_out(library), names=names)
        (first,) = symbolizer.symbolize([RawStack((second,), StackEnd.BOTTOM)])
        assert (first.pending, symbolizer.lacked_total) == (True, 1)
        asked.set()

        stack = one(symbolizer, second)
        assert (stack.frames[0].function, stack.pending) == (None, False)

        monkeypatch.setattr(lookup, "answers", answers)
        now_s[0] = 3_600.0
        assert functions(symbolizer, second) == ["second"]

    def test_functions_of_a_stripped_file_are_told_by_where_they_begin(self, tmp_path: Path) -> None:
        """As call frame information says: one for all addresses of a function, none between functions."""
        function = "static __attribute__((used)) int {}(int n) {{ return n * 23; }}\n"
        between = '__asm__(".fill 64, 1, 0x90");\n'
        source = function.format("f") + between + function.format("g")
        path = compiled(tmp_path, source, "-shared", "-fPIC", "-fno-toplevel-reorder")
        starts = nm(path)
        output_of("strip", "--strip-all", path)
        symbolizer = symbolizer_of(laid_out(path))
        f, g = BASE + starts["f"], BASE + starts["g"]
        frames = frames_of(symbolizer, f, f + 2, f + 5, g + 1, g + 4, g)
        assert [frame.function for frame in frames] == [None] * 6
        expected = [starts["f"]] * 3 + [starts["g"]] * 2
        assert [frame.function_start for frame in frames] == [*expected, None]

    def test_cpp_names_are_demangled(self, tmp_path: Path) -> None:
        """C++ names are shown as they were written."""
        path = compiled(
            tmp_path,
            "namespace shop { int order(int n) { return n * 23; } }",
            "-shared",
            "-fPIC",
            suffix=".cpp",
        )
        address = BASE + nm(path)["_ZN4shop5orderEi"]
        assert functions(symbolizer_of(laid_out(path)), address) == ["shop::order(int)"]

    def test_inlined_functions_are_frames(self, tmp_path: Path) -> None:
        """Inlined functions come before the one that holds them, at the same address, with their lines."""
        source = "#include <stdlib.h>\n"
        source += "static inline __attribute__((always_inline)) void *inner(int n) {\n return malloc(n); }\n"
        source += "void *outer(int n) {\n  n += rand();\n  void *p = inner(n);\n  return p ? p : NULL; }\n"
        path = compiled(tmp_path, source, "-g", "-O1", "-shared", "-fPIC", "-fno-builtin-malloc")
        rows = output_of("objdump", "-d", "--no-show-raw-insn", path).splitlines()
        call = next(index for index, row in enumerate(rows) if "call" in row and "<malloc@plt>" in row)
        returned = int(rows[call + 1].partition(":")[0], 16)
        symbolizer = symbolizer_of(laid_out(path))

        stack = one(symbolizer, BASE + nm(path)["outer"], BASE + returned)

        shown = [(f.function, f.location, f.inlined, f.offset) for f in stack.frames]
        assert shown == [
            ("outer", f"{path}.c:4", False, nm(path)["outer"]),
            ("inner", f"{path}.c:3", True, returned),
            ("outer", f"{path}.c:6", False, returned),
        ]
        assert len(set(stack.build_ids)) == 1
        assert len(stack.build_ids) == 3

    def test_another_library_at_the_same_address(self, library: Path, tmp_path: Path) -> None:
        """After dlclose and dlopen an address may be in another file: nothing stale is shown."""
        other = assembled(tmp_path, ".globl other\n.type other,@function\nother: .fill 64\n.size other,64\n")
        symbolizer = symbolizer_of(laid_out(library))
        address = BASE + nm(library)["second"]
        assert functions(symbolizer, address) == ["second"]
        symbolizer.update_mappings(laid_out(other))
        assert functions(symbolizer, address) == ["other"]


class TestLive:
    """Real processes."""

    def test_own_process(self) -> None:
        """Functions of our own libc, where ctypes finds them, have their names."""
        libc = ctypes.CDLL("libc.so.6")
        names = ["malloc", "calloc", "realloc", "free", "posix_memalign", "getenv"]
        addresses = [ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0 for name in names]
        symbolizer = symbolizer_of(mappings_of("self"))
        assert [functions(symbolizer, address)[0] for address in addresses] == names

    def test_vdso(self, tmp_path: Path) -> None:
        """Functions of the vdso are named, though it is not a file: nm reads a copy of it."""
        start, end = (int(part, 16) for part in VDSO_ROW.split()[0].split("-"))
        copy = tmp_path / "vdso"
        copy.write_bytes(ctypes.string_at(start, end - start))
        vaddr = nm(copy, "-D")["__vdso_clock_gettime"]

        (frame,) = frames_of(symbolizer_of(mappings_of("self")), start + vaddr)

        assert frame.kind is FrameKind.VDSO
        assert (frame.function, frame.module, frame.offset) == ("clock_gettime", "[vdso]", vaddr)

    def test_vdso_of_another_kind(self) -> None:
        """A vdso of another size is that of a 32-bit program, and not named after ours."""
        start, end = (int(part, 16) for part in VDSO_ROW.split()[0].split("-"))
        mapping = Mapping(start, end + 4096, 0, "00:00", 0, "[vdso]", True, False, True)
        assert frames_of(symbolizer_of([mapping]), start + 0x800)[0].kind is FrameKind.UNKNOWN

    @pytest.mark.parametrize("options", [["-no-pie"], ["-pie", "-fPIE"]])
    def test_child_and_after_its_end(self, tmp_path: Path, options: list[str]) -> None:
        """A program's own functions are named while it runs, and when it has ended and its file is gone."""
        source = (
            "#include <stdio.h>\n"
            "static __attribute__((noinline)) void *here(void) { return __builtin_return_address(0); }\n"
            'static __attribute__((noinline)) void *leak(void) { void *p = here(); puts(""); return p; }\n'
            'int main(void) { printf("%p %p\\n", leak(), (void *)main); fflush(stdout); getchar(); }\n'
        )
        path = compiled(tmp_path, source, *options)
        with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            child.stdout.readline()
            returned, main = (int(word, 16) for word in child.stdout.readline().split())
            symbolizer = Symbolizer(
                "child", lambda m: open_mapped(child.pid, m, "child"), ModuleCache(), names=NAMES
            )
            symbolizer.update_mappings(mappings_of(child.pid))
            late = Symbolizer(
                "late", lambda m: open_mapped(child.pid, m, "child"), ModuleCache(), names=NAMES
            )
            late.update_mappings(mappings_of(child.pid))
            assert functions(symbolizer, main, returned) == ["main", "leak"]
            child.communicate("\n")
        # Like the files of a container, whose file system goes with its last process.
        path.unlink()

        assert functions(symbolizer, main + 1, main, returned)[::2] == ["main", "leak"]
        assert functions(late, main, returned) == ["main", "leak"]
        assert symbolizer.losses == late.losses == {}


class TestJit:
    """Code that was compiled at run time."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "perf-23.map"

    @pytest.fixture
    def symbolizer(self, path: Path) -> Iterator[Symbolizer]:
        opened = symbolizer_of([JIT], perf_map=PerfMap(path, os.geteuid(), OUR_ROOT))
        yield opened
        opened.close()

    def test_name_of_the_perf_map(self, path: Path, symbolizer: Symbolizer) -> None:
        """Anonymous memory is named by the perf map; return addresses belong to the call here too."""
        path.write_text("10000 100 LazyCompile:*leak /srv/app.js:3\n10100 100 next\n")
        stack = one(symbolizer, 0x10100, 0x10100)
        assert stack.frames == (
            Frame("next", "[jit]", None, None, 0x10100, FrameKind.JIT),
            Frame("LazyCompile:leak /srv/app.js:3", "[jit]", None, None, 0x10100, FrameKind.JIT),
        )
        assert stack.build_ids == (None, None)

    @pytest.mark.parametrize(
        ("name", "function", "module"),
        [
            ("void [Foo] Bar::Main()[Optimized]", "Bar.Main", "Foo"),
            (
                "class String[] [My.Shop-2] Order::Lines(int32[])[Tier1]",
                "Order.Lines",
                "My.Shop-2",
            ),
            ("int32[] [Foo] Bar::Sizes()", "Bar.Sizes", "Foo"),
            ("stub<1> AllocateTemporaryEntryPoints", "stub<1> AllocateTemporaryEntryPoints", "[jit]"),
            ("Lorg/shop/Order;::leak()[12]", "Lorg/shop/Order;::leak()[12]", "[jit]"),
            ("[../evil] Bar::Main()", "[../evil] Bar::Main()", "[jit]"),
            ("JS:*leak file:///srv/app.js:3:14", "JS:leak file:///srv/app.js:3:14", "[jit]"),
            ("JS:^ /srv/app.js:1:1", "JS: /srv/app.js:1:1", "[jit]"),
            ("Builtin:*Multiply", "Builtin:*Multiply", "[jit]"),
        ],
    )
    def test_a_method_has_one_name(
        self, path: Path, symbolizer: Symbolizer, name: str, function: str, module: str
    ) -> None:
        """How well it was compiled is left out; .NET's assembly in brackets is the module."""
        path.write_text(f"10000 100 {name}\n")
        (frame,) = frames_of(symbolizer, 0x10000)
        assert (frame.function, frame.module) == (function, module)

    def test_method_that_is_compiled_again(self, path: Path, symbolizer: Symbolizer) -> None:
        """When the map grows, names are looked up again: nothing stale is shown."""
        path.write_text("10000 100 old\n")
        assert functions(symbolizer, 0x10010) == ["old"]
        with path.open("a") as file:
            file.write("10000 80 new\n10800 10 late\n")
        assert functions(symbolizer, 0x10010) == ["new"]
        assert functions(symbolizer, 0x10800) == ["late"]

    def test_memory_that_nobody_names(self, path: Path, symbolizer: Symbolizer) -> None:
        """Without an entry, or without any perf map, an address is unknown and stays unnamed."""
        path.write_text("10000 100 f\n")
        expected = (Frame(None, None, None, None, 0x10200, FrameKind.UNKNOWN),)
        assert frames_of(symbolizer, 0x10200) == expected
        assert frames_of(symbolizer_of([JIT]), 0x10200) == expected
        assert symbolizer.losses == {}

    def test_mapped_file_that_is_no_elf_file(self, tmp_path: Path, path: Path) -> None:
        """.NET maps its assemblies: their code is named by the perf map, else by the file."""
        assembly = tmp_path / "Shop.dll"
        assembly.write_bytes(b"MZ" + bytes(8192))
        inode = assembly.stat().st_ino
        mapping = Mapping(0x10000, 0x12000, 0, "08:01", inode, str(assembly), True, False, True)
        path.write_text("10000 100 void [Shop] Order::Leak()[PreJIT]\n")
        symbolizer = symbolizer_of([mapping], perf_map=PerfMap(path, os.geteuid(), OUR_ROOT))
        known, unknown = frames_of(symbolizer, 0x10010, 0x10800)
        assert (known.module, known.kind) == ("Shop", FrameKind.JIT)
        assert (unknown.function, unknown.module, unknown.kind) == (None, "Shop.dll", FrameKind.UNKNOWN)

    def test_real_anonymous_memory(self, path: Path) -> None:
        """Executable memory of our own is found by its address and named."""
        with mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as memory:
            holder = ctypes.c_char.from_buffer(memory)
            address = ctypes.addressof(holder)
            del holder
            path.write_text(f"{address:x} 1000 compiled\n")
            symbolizer = symbolizer_of(mappings_of("self"), perf_map=PerfMap(path, os.geteuid(), OUR_ROOT))
            (frame,) = frames_of(symbolizer, address + 23)
        assert (frame.function, frame.kind) == ("compiled", FrameKind.JIT)


class TestLosses:
    """Unknown names are reported."""

    def test_address_outside_of_everything(self, library: Path) -> None:
        """An unmapped address is unknown, and looked up again with newer maps."""
        symbolizer = symbolizer_of([])
        address = BASE + nm(library)["second"]
        assert not symbolizer.covers([address])
        assert frames_of(symbolizer, address) == (Frame(None, None, None, None, address, FrameKind.UNKNOWN),)
        assert symbolizer.losses == {}
        symbolizer.update_mappings(laid_out(library))
        assert symbolizer.covers([address])
        assert functions(symbolizer, address) == ["second"]
        assert symbolizer.losses == {}

    def test_what_newer_mappings_do_not_cover_either_is_counted(self) -> None:
        """Once, however often it is looked up."""
        symbolizer = symbolizer_of([])
        for _look in range(3):
            frames_of(symbolizer, 0x1000, 0x2000)
            frames_of(symbolizer, 0x1000, 0x2000)
            symbolizer.update_mappings([])
        assert symbolizer.losses == {"unknown_addresses": 2}

    @pytest.mark.parametrize("end", [StackEnd.FRAME_POINTER_END, StackEnd.BOTTOM, StackEnd.DEPTH])
    def test_strays_at_the_end_are_left_out(self, library: Path, end: StackEnd) -> None:
        """Code does not return to unmapped memory: the walk had gone astray before."""
        symbolizer = symbolizer_of(laid_out(library))
        first, second = (BASE + nm(library)[name] for name in ("first", "second"))

        stack = one(symbolizer, first, second, second, 0x1234, 0xFFFF_8000, end=end)

        assert [frame.function for frame in stack.frames] == ["first", "first", "first"]
        assert len(stack.build_ids) == 3
        assert stack.truncated is (StackEnd.FRAME_POINTER_END if end is StackEnd.BOTTOM else end)
        assert symbolizer.losses == {}

    def test_only_the_end_is_left_out(self, library: Path) -> None:
        """In between, and as the immediate caller, it is code whose mapping is gone or new."""
        symbolizer = symbolizer_of(laid_out(library))
        first, second = (BASE + nm(library)[name] for name in ("first", "second"))
        assert functions(symbolizer, first, 0x1234, second) == ["first", None, "first"]
        stack = one(symbolizer, first, 0x1234)
        assert [frame.address for frame in stack.frames] == [first, 0x1234]
        assert stack.truncated is None

    @pytest.mark.parametrize("address", [0, 1, (1 << 64) - 1])
    def test_absurd_addresses(self, address: int) -> None:
        """Numbers that cannot be addresses of code are unknown like others."""
        symbolizer = symbolizer_of(mappings_of("self"))
        kind = FrameKind.INTERPRETED if address >> 63 else FrameKind.UNKNOWN
        frames = frames_of(symbolizer, address, address)
        assert {(frame.kind, frame.function) for frame in frames} == {(kind, None)}

    def test_lost_stack_is_empty(self, library: Path) -> None:
        """A stack that the kernel side lost has no frames, and says so."""
        symbolizer = symbolizer_of(laid_out(library))
        stack = one(symbolizer, BASE + nm(library)["first"], end=StackEnd.LOST)
        assert stack == Stack((), (), StackEnd.LOST)

    @pytest.mark.parametrize("end", [end for end in StackEnd if end is not StackEnd.BOTTOM])
    def test_truncated_stacks_say_why(self, end: StackEnd) -> None:
        """All other ends but the bottom are passed on."""
        assert one(symbolizer_of([]), 0x1000, end=end).truncated is end

    def test_file_that_cannot_be_opened(self, library: Path) -> None:
        """A file that is gone leaves the name of its module, and is counted."""
        gone = [replace(mapping, path="/nowhere/libgone.so") for mapping in laid_out(library)]
        symbolizer = symbolizer_of(gone)
        (frame,) = frames_of(symbolizer, BASE + nm(library)["first"])
        assert (frame.function, frame.module, frame.kind) == (None, "libgone.so", FrameKind.UNKNOWN)
        frames_of(symbolizer, BASE + nm(library)["second"])
        assert symbolizer.losses == {"unreadable_files": 1}

    def test_hostile_file_name(self, tmp_path: Path, library: Path) -> None:
        """The name of a library is shown without its escape sequences."""
        path = tmp_path / "lib\x1b[2J.so"
        path.write_bytes(library.read_bytes())
        (frame,) = frames_of(symbolizer_of(laid_out(path)), BASE + nm(library)["first"])
        assert frame.module == "lib\\x1b[2J.so"


def test_known_stacks_cost_little(library: Path) -> None:
    """A thousand stacks of thirty frames, as at every tick, take less than a second, also under coverage."""
    symbolizer = symbolizer_of(laid_out(library))
    addresses = tuple(BASE + nm(library)["first"] + n % 5 for n in range(30))
    stacks = [RawStack(addresses, StackEnd.BOTTOM)] * 1_000
    one(symbolizer, *addresses)
    began_s = time.process_time()
    assert len(symbolizer.symbolize(stacks)) == 1_000
    assert time.process_time() - began_s < 1.0
