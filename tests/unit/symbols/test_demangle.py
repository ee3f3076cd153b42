"""Readable names: what `nm -C` shows, and a child that cannot be made to hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from bpfleakd.symbols.demangle import NAME_LIMIT_CHARACTERS, Demangler

from ..elf.building import compiled, output_of


@pytest.fixture
def demangler() -> Iterator[Demangler]:
    output_of("c++filt", "--version")
    started = Demangler()
    yield started
    started.close()


def script(directory: Path, text: str) -> str:
    path = directory / "filter"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def bomb() -> str:
    """A name in which every type consists twice of the one before: 2**30 words in 250 characters."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    steps = (f"S_IS{digits[n]}_S{digits[n]}_E" for n in range(1, 31))
    return "_Z1f1AI1B1BE" + "".join(steps)


class TestNames:
    """What becomes of a name."""

    @pytest.mark.parametrize(
        ("name", "readable"),
        [
            ("_ZN4shop5orderEi", "shop::order(int)"),
            ("_Znwm", "operator new(unsigned long)"),
            ("_ZNSs6appendEPKc", "std::string::append(char const*)"),
            ("_Z4leakv.cold", "leak() [clone .cold]"),
            ("__ZN4shop5orderEi", "shop::order(int)"),
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
            ("_ZN4core3ptr1a17h0000000000000000E", "core::ptr::a"),
            (
                "_ZN4core3ptr42drop_in_place$LT$alloc..string..String$GT$17h0123456789abcdefE.llvm.23",
                "core::ptr::drop_in_place<alloc::string::String>",
            ),
            ("_RNvCs1234_7mycrate3foo", "mycrate::foo"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
        ],
    )
    def test_mangled(self, demangler: Demangler, name: str, readable: str) -> None:
        """C++ and Rust names, of both of Rust's kinds, are as their authors wrote them."""
        assert demangler.demangle_all([name]) == {name: readable}

    @pytest.mark.parametrize(
        "name", ["malloc", "_start", "_Zjunk", "_Rjunk", "", "_Z", "a b", "_Z4leakv\n_Z1fv", "_Z4leakv "]
    )
    def test_not_mangled(self, demangler: Demangler, name: str) -> None:
        """Other names stay as they are."""
        assert demangler.demangle_all([name]) == {name: name}

    def test_all_of_a_program(self, demangler: Demangler, tmp_path: Path) -> None:
        """The names of a C++ program become what nm -C calls them."""
        source = "#include <map>\n#include <string>\nstd::map<std::string, int> orders;\n"
        path = compiled(tmp_path, source + "int main(int n, char **v) { orders[v[0]] = n; }", suffix=".cpp")
        mangled = [line[19:] for line in output_of("nm", "--defined-only", path).splitlines()]
        readable = [line[19:] for line in output_of("nm", "--defined-only", "-C", path).splitlines()]
        assert demangler.demangle_all(mangled) == dict(zip(mangled, readable, strict=True))
        assert sum(name.startswith("_Z") for name in mangled) > 20


class TestChild:
    """The c++filt behind it."""

    def test_names_that_explode(self, demangler: Demangler) -> None:
        """A short name that stands for gigabytes stays as it is, and the next one is answered."""
        assert demangler.demangle_all([bomb()]) == {bomb(): bomb()}
        assert demangler.failures == 1
        assert demangler.demangle_all(["_Z4leakv"]) == {"_Z4leakv": "leak()"}

    def test_long_names_are_not_asked_for(self, demangler: Demangler) -> None:
        """What is longer than any name stays as it is."""
        name = "_Z" + "1a" * NAME_LIMIT_CHARACTERS
        assert demangler.demangle_all([name]) == {name: name}
        assert demangler.failures == 0

    def test_names_are_asked_for_once(self, tmp_path: Path) -> None:
        """What is known is not asked again."""
        counter = script(tmp_path, 'n=0; while read name; do n=$((n+1)); echo "answer $n"; done')
        demangler = Demangler(counter)
        for _ in range(3):
            assert demangler.demangle_all(["_Z1av"]) == {"_Z1av": "answer 1"}
        assert demangler.demangle_all(["_Z1bv"]) == {"_Z1bv": "answer 2"}
        demangler.close()

    def test_child_that_died_is_started_again(self, tmp_path: Path) -> None:
        """A child that ends costs one name, not all that follow."""
        died = tmp_path / "died"
        demangler = Demangler(script(tmp_path, f"test -e {died} && exec cat; touch {died}; read name"))
        assert demangler.demangle_all(["_Z1av"]) == {"_Z1av": "_Z1av"}
        assert demangler.failures == 1
        assert demangler.demangle_all(["_Z1bv"]) == {"_Z1bv": "_Z1bv"}
        assert demangler.failures == 1
        demangler.close()

    def test_missing_program_is_reported_once(self, tmp_path: Path) -> None:
        """Without c++filt names stay mangled, and one message says why."""
        with structlog.testing.capture_logs() as logs:
            demangler = Demangler(str(tmp_path / "nowhere"))
            for name in ("_Z1av", "_Z1bv"):
                assert demangler.demangle_all([name]) == {name: name}
        assert [entry["event"] for entry in logs] == ["demangle.unavailable"]

    def test_use_after_close(self, demangler: Demangler) -> None:
        """`close` ends the child; asking again starts another."""
        demangler.close()
        demangler.close()
        assert demangler.demangle_all(["_Z4leakv"]) == {"_Z4leakv": "leak()"}
