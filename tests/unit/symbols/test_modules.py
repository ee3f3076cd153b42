"""Modules: files that are opened once, shared, and closed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from bpfleakd.elf.image import ElfImage
from bpfleakd.errors import BadElf
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.symbols.module_cache import Module, ModuleCache
from bpfleakd.symbols.process_files import ProcessFiles

from ..elf.building import assembled, compiled, output_of
from .opening import open_file

SOURCE = "static __attribute__((noinline)) int hidden(int n) { return n * 23; }\n"
SOURCE += "int main(int n, char **v) { return hidden(n); }"


def library(directory: Path, name: str) -> Path:
    path = assembled(directory, f".globl {name}\n.type {name},@function\n{name}: ret\n.size {name},1\n")
    return path.rename(directory / f"lib{name}.so")


def opened(cache: ModuleCache, path: Path) -> Module:
    module = cache.get(cache.open(open_file(path), str(path), "me", None))
    assert module is not None
    return module


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mapping_of(path: Path, deleted: bool = False) -> Mapping:
    status = path.stat()
    device, inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}", status.st_ino
    return Mapping(0x1000, 0x2000, 0, device, inode, str(path), True, False, True, deleted)


class TestModule:
    """One file with what belongs to it."""

    def test_a_program_and_its_separate_file(self, tmp_path: Path) -> None:
        """A stripped program comes with its debug file; one with all of it comes alone."""
        program = compiled(tmp_path, SOURCE, "-g", "-O1")
        whole = opened(ModuleCache(), program)
        debug = tmp_path / "program.debug"
        output_of("objcopy", "--only-keep-debug", program, debug)
        output_of("strip", program)
        output_of("objcopy", f"--add-gnu-debuglink={debug}", program)

        assert real_paths(whole) == [str(program)]
        assert real_paths(opened(ModuleCache(), program)) == [str(program), str(debug)]

    def test_files_stay_open_whatever_becomes_of_their_names(self, tmp_path: Path) -> None:
        """Until the module is closed."""
        program = compiled(tmp_path, SOURCE, "-g")
        module = opened(ModuleCache(), program)
        program.unlink()
        assert len(real_paths(module)) == 1
        module.close()
        assert module.duplicate_files() == []

    def test_a_debug_file_that_only_one_process_sees(self, tmp_path: Path) -> None:
        """It belongs to a module of that process alone."""
        program = compiled(tmp_path, SOURCE, "-g", "-O1")
        debug = tmp_path / "elsewhere"
        output_of("objcopy", "--only-keep-debug", program, debug)
        output_of("strip", program)
        cache = ModuleCache()
        shared = cache.open(open_file(program), str(program), "root", None)
        own = cache.open(
            open_file(program), str(program), "other", lambda _image, _path: ElfImage.open(debug)
        )
        assert own != shared
        modules = [cache.get(key) for key in (shared, own)]
        assert [len(real_paths(module)) for module in modules if module] == [1, 2]
        assert len({module.identity for module in modules if module}) == 2


def real_paths(module: Module) -> list[str]:
    """The real paths of the files for a helper."""
    files = module.duplicate_files()
    try:
        return [os.readlink(f"/proc/self/fd/{file}") for file in files]
    finally:
        for file in files:
            os.close(file)


class TestCache:
    """Modules of all processes."""

    def test_one_file_is_one_module(self, tmp_path: Path) -> None:
        """Two names of a file are one module, a changed file another."""
        path = library(tmp_path, "shared")
        os.link(path, tmp_path / "other-name.so")
        cache = ModuleCache()
        assert opened(cache, path) is opened(cache, tmp_path / "other-name.so")
        os.utime(path, (1, 1))
        assert len(cache) == 1
        opened(cache, path)
        assert len(cache) == 2
        cache.close()

    def test_files_over_the_limit_are_closed(self, tmp_path: Path) -> None:
        """The modules used last stay open; descriptors do not pile up."""
        paths = [library(tmp_path, f"number{n}") for n in range(5)]
        before = open_descriptors()
        cache = ModuleCache(modules_max=2)
        keys = [cache.open(open_file(path), str(path), "me", None) for path in paths]
        assert [cache.get(key) is not None for key in keys] == [False, False, False, True, True]
        assert open_descriptors() == before + 2
        cache.close()
        assert open_descriptors() == before

    def test_what_is_no_elf_file(self, tmp_path: Path) -> None:
        """The difference between a bad file and none is kept."""
        (tmp_path / "text").write_text("hello")
        with pytest.raises(BadElf):
            ModuleCache().open(open_file(tmp_path / "text"), "/text", "me", None)
        with pytest.raises(FileNotFoundError):
            open_file(tmp_path / "none")


class TestProcessFiles:
    """From a mapping to its module."""

    def test_file_that_can_be_opened(self, tmp_path: Path) -> None:
        """The given path is opened; the second time, nothing is opened."""
        path = library(tmp_path, "mapped")
        asked = []
        files = ProcessFiles(lambda m: asked.append(m) or open_file(path), ModuleCache(), "me")
        module = files.module_of(mapping_of(path))
        assert module is not None
        assert files.module_of(mapping_of(path)) is module
        assert len(asked) == 1

    def test_process_that_ended(self, tmp_path: Path) -> None:
        """If the process' directory is gone, the real path is used, if it is still the same file."""
        path = library(tmp_path, "left")
        files = ProcessFiles(lambda m: open_file(Path("/proc/0/none")), ModuleCache(), "me")
        assert files.module_of(mapping_of(path)) is not None
        other = replace(mapping_of(path), inode=path.stat().st_ino + 1)
        assert files.module_of(other) is None
        assert files.unreadable == 1

    def test_deleted_file_is_not_mistaken_for_its_successor(self, tmp_path: Path) -> None:
        """After an upgrade the path leads to another library, with other names."""
        path = library(tmp_path, "upgraded")
        old = mapping_of(path, deleted=True)
        path.rename(tmp_path / "kept")
        library(tmp_path, "upgraded")
        files = ProcessFiles(lambda m: open_file(Path(m.path)), ModuleCache(), "me")
        assert files.module_of(old) is None
        kept = ProcessFiles(lambda m: open_file(tmp_path / "kept"), ModuleCache(), "me")
        assert kept.module_of(old) is not None

    def test_what_is_no_elf_file(self, tmp_path: Path) -> None:
        """Mapped data is neither a module nor an error; it is opened once."""
        path = tmp_path / "data"
        path.write_text("data")
        asked = []
        files = ProcessFiles(lambda m: asked.append(m) or open_file(path), ModuleCache(), "me")
        for _ in range(3):
            assert files.module_of(mapping_of(path)) is None
        assert len(asked) == 1
        assert files.unreadable == 0

    @pytest.mark.parametrize("path", ["", "[heap]", "[stack]"])
    def test_memory_without_a_file(self, path: str) -> None:
        """Anonymous memory is never opened."""
        files = ProcessFiles(lambda m: pytest.fail("opened"), ModuleCache(), "me")
        mapping = Mapping(0x1000, 0x2000, 0, "00:00", 0, path, True, True, True)
        assert files.module_of(mapping) is None
        assert not files.is_file(mapping)
