"""Which functions of a file are probed, by its definitions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bpfleakd.model.code.probe import FunctionRole
from bpfleakd.process.allocators import ALLOCATORS, FUNCTIONS, SIGNS, TELLING_NAMES, identify

from ..elf.building import nm, output_of

C_NAMES = ("malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign")
OPERATORS = ("_Znwm", "_ZdlPv", "_ZdlPvm")


def identified(*names: str, **addresses: int) -> dict[str, str]:
    """Function -> allocator, in a file that defines `names`, each at a separate address unless given."""
    defined = {name: 0x1000 + 16 * i for i, name in enumerate(names)} | addresses
    return {function.name: allocator.name for allocator, function in identify(defined)}


def of(allocator: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, allocator)


class TestIdentify:
    """From the names that a file defines to its probed functions."""

    def test_glibc(self) -> None:
        """libc.so.6, or a static program: operators in there are libstdc++'s, which call malloc."""
        found = identified(*C_NAMES, *OPERATORS, "__libc_mallopt", "__libc_start_main")
        assert found == of("glibc", *C_NAMES)

    def test_glibcs_loader_has_a_malloc_for_itself(self) -> None:
        """The one that old ones export is used before libc.so is there, and its blocks are never freed."""
        found = identified("malloc", "free", "calloc", "realloc", "_dl_debug_state")
        assert found == {"_dl_debug_state": "ld.so"}

    def test_musl_is_its_own_loader(self) -> None:
        """Both are probed there."""
        found = identified(*C_NAMES, "_dl_debug_state", "__libc_start_main", "__dls3")
        assert found == of("musl", *C_NAMES) | {"_dl_debug_state": "ld.so"}

    def test_a_static_musl_program_that_never_frees(self) -> None:
        """musl's free is not linked into it; leak it can."""
        found = identified("malloc", "__libc_malloc_impl", "__libc_start_main")
        assert found == {"malloc": "musl"}

    def test_jemalloc(self) -> None:
        """Its operators are its own."""
        found = identified(*C_NAMES, *OPERATORS, "mallocx", "rallocx", "sdallocx", "nallocx")
        assert found == of("jemalloc", *C_NAMES, *OPERATORS, "mallocx", "rallocx", "sdallocx")

    @pytest.mark.parametrize("prefix", ["je_", "_rjem_"])
    def test_jemalloc_with_a_prefix_beside_glibc(self, prefix: str) -> None:
        """A static program with both: each has its own names."""
        own = [prefix + name for name in ("malloc", "free", "calloc", "mallocx", "dallocx")]
        found = identified(*C_NAMES, *OPERATORS, "__libc_mallopt", *own)
        assert found == of("glibc", *C_NAMES) | of("jemalloc", *own)

    def test_tcmalloc(self) -> None:
        """It defines glibc's internal names, too."""
        found = identified(
            *C_NAMES, *OPERATORS, "__libc_memalign", "tc_free", malloc=0x23000, tc_malloc=0x23000
        )
        assert found == of("tcmalloc", *C_NAMES, *OPERATORS, "tc_malloc", "tc_free")

    def test_mimalloc_that_replaces_malloc(self) -> None:
        """malloc is another name of mi_malloc."""
        found = identified(*C_NAMES, *OPERATORS, "mi_free", "mi_zalloc", malloc=0x23000, mi_malloc=0x23000)
        assert found == of("mimalloc", *C_NAMES, *OPERATORS, "mi_malloc", "mi_free", "mi_zalloc")

    def test_mimalloc_beside_glibc(self) -> None:
        """In a static program that calls it by its own names, malloc stays glibc's."""
        found = identified(*C_NAMES, "__libc_mallopt", "mi_malloc", "mi_free")
        assert found == of("glibc", *C_NAMES) | of("mimalloc", "mi_malloc", "mi_free")

    def test_an_unknown_allocator(self) -> None:
        """Whatever defines malloc and free; its reallocarray and operators may be its own."""
        names = ("malloc", "free", "realloc", "reallocarray", "_Znwm")
        assert identified(*names) == of("other", *names)

    @pytest.mark.parametrize(
        "names",
        [
            ("free",),
            ("malloc",),
            ("calloc", "realloc"),
            OPERATORS,
            ("tc_malloc",),
            ("mi_free",),
            ("mallocx", "dallocx"),
            ("__libc_mallopt", "malloc"),
            (),
        ],
    )
    def test_files_that_hold_none(self, names: tuple[str, ...]) -> None:
        """Half an allocator is none, and libstdc++'s operators call malloc."""
        assert identified(*names) == {}


class TestTable:
    """Properties of every row."""

    def test_every_allocator_gives_and_takes(self) -> None:
        """No function is there twice, and what gives memory out is required."""
        for allocator in ALLOCATORS:
            names = [function.name for function in allocator.functions]
            assert len(names) == len(set(names))
            roles = {function.role for function in allocator.functions}
            assert {FunctionRole.SIZE_FIRST, FunctionRole.RELEASE} <= roles
            assert any(f.required and f.role is FunctionRole.SIZE_FIRST for f in allocator.functions)

    def test_a_name_has_one_role(self) -> None:
        """FUNCTIONS is used before the allocator is known."""
        known = {function.name: (function.role, function.leading) for function in FUNCTIONS}
        for allocator in ALLOCATORS:
            for function in allocator.functions:
                assert known[function.name] == (function.role, function.leading)

    def test_no_allocator_is_missed_by_the_first_look(self) -> None:
        """Each has a required function among the telling names."""
        for allocator in ALLOCATORS:
            assert TELLING_NAMES & {f.name for f in allocator.functions if f.required}

    def test_signs_are_looked_for(self) -> None:
        """As functions or besides."""
        asked = {function.name for function in FUNCTIONS} | SIGNS
        assert all(set(allocator.signs) <= asked for allocator in ALLOCATORS)
        assert {allocator.twin for allocator in ALLOCATORS} - {""} <= asked


# File -> allocator and how many names it has there at least.
INSTALLED = {
    "libc.so.6": ("glibc", 10),
    "libjemalloc.so.2": ("jemalloc", 30),
    "libtcmalloc_minimal.so.4": ("tcmalloc", 55),
    "libtcmalloc.so.4": ("tcmalloc", 55),
    "libmimalloc.so.2.0": ("mimalloc", 100),
    "libmimalloc.so.3.0": ("mimalloc", 100),
}

# Exported names that sound like an allocator's function and are not one: they measure, print or tune, or call
# a function in the table.
_OTHERS = re.compile(
    r"""(?:tc_)?(?:malloc|nallocx|sallocx|mallinfo2?|mallopt)
          (?:_(?:size|stats\w*|usable_size|good_size|conf|message|hook))?
      | tc_(?:version|query_new_mode|set_new_mode)
      | __st(?:art|op)_\w+ | __libc_\w+ | _aligned_malloc | vfree | (?:mi_)?reallocarr
      | mi_(?:stats|thread|option|register|process|debug|is|manage|reserve|arena|check|subproc|abandoned)_\w+
      | mi_(?:usable|good|malloc|malloc_usable|malloc_good)_size | mi_(?:collect|version)
      | mi_(?:mbsdup|wcsdup|dupenv_s|wdupenv_s|realpath|heap_realpath)
      | mi_heap_(?:(?:try_)?new|delete|destroy|collect|reload|unload|new_ex)
      | mi_heap_(?:get|set|visit|contains|check|new_in|guarded)_\w+
    """,
    re.VERBOSE,
)


@pytest.mark.parametrize("name", INSTALLED)
def test_libraries_of_this_machine(name: str) -> None:
    """All names of the known kinds are in the table, and the file is recognised by them."""
    path = output_of("gcc", f"-print-file-name={name}").strip()
    if not Path(path).is_absolute():
        pytest.skip(f"{name} is not installed")
    defined = nm(Path(path), "-D", "--defined-only")
    allocator, names_at_least = INSTALLED[name]

    found = {function.name: owner.name for owner, function in identify(defined)}

    assert set(found.values()) == {allocator}
    assert len(found) >= names_at_least
    if allocator != "glibc":
        family = re.compile(r"(?:tc|mi)_\w+|[a-z_]*(?:alloc|free)[a-z_]*|_Z(?:nw|na|dl|da)\w+")
        left_out = {name for name in defined if family.fullmatch(name)} - found.keys()
        assert {name for name in left_out if not _OTHERS.fullmatch(name)} == set()
