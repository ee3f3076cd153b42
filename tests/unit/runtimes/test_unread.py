"""Runtimes that are recognised only."""

from __future__ import annotations

import pytest

from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.process import ProcessId
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.unread import Unread, detect_unread


def found_in(exe: str, *libraries: str) -> Unread | None:
    names = "x", exe, 0, "S"
    process = ProcessInfo(ProcessId(7, 1), 7, *names, 1, kernel_thread=False, seccomp_filtered=False)
    mappings = [
        Mapping(0x1000, 0x2000, 0, "fe:01", 9, path, readable=True, writable=False, executable=True)
        for path in (exe, *libraries)
    ]
    return detect_unread(process, mappings)


def language(exe: str, *libraries: str) -> str | None:
    found = found_in(exe, *libraries)
    return found.version if found else None


@pytest.mark.parametrize(
    ("exe", "expected"),
    [
        ("/usr/bin/ruby3.1", "Ruby"),
        ("/usr/bin/php8.2", "PHP"),
        ("/usr/sbin/php-fpm8.2", "PHP"),
        ("/usr/bin/perl", "Perl"),
        ("/usr/bin/lua5.4", "Lua"),
        ("/usr/bin/luajit-2.1.0-beta3", "Lua"),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", "Erlang"),
        ("/usr/bin/mono-sgen", "Mono"),
        ("/usr/bin/tclsh8.6", "Tcl"),
        ("/root/.deno/bin/deno", "Deno"),
        ("/root/.bun/bin/bun", "Bun"),
        ("/usr/sbin/nginx", None),
        ("/opt/perl/perlite", None),
    ],
)
def test_a_language_is_told_by_its_program(exe: str, expected: str | None) -> None:
    """As distributions name it, with its version."""
    assert language(exe, "/usr/lib/x86_64-linux-gnu/libc.so.6") == expected


def test_a_language_in_another_program() -> None:
    """A server with PHP built in runs PHP; an editor that links Perl need not run it."""
    assert language("/usr/sbin/apache2", "/usr/lib/apache2/modules/libphp8.2.so") == "PHP"
    assert language("/usr/bin/vim.basic", "/usr/lib/x86_64-linux-gnu/libperl.so.5.36") is None


def test_its_note_names_the_way_to_more() -> None:
    """A flag of the runtime, where there is one."""
    found = found_in("/usr/lib/erlang/erts-13.1.5/bin/beam.smp")
    assert found is not None
    (note,) = found.notes
    assert "+JPperf true" in note


def test_what_a_collector_frees_counts_until_then() -> None:
    """Ruby's objects do; Perl frees an object when nothing refers to it."""
    ruby, perl = found_in("/usr/bin/ruby3.1"), found_in("/usr/bin/perl")
    assert ruby is not None
    assert perl is not None
    assert [ruby.has_collector, perl.has_collector] == [True, False]
    assert ["until its garbage collector frees them" in one.notes[0] for one in (ruby, perl)] == [True, False]
