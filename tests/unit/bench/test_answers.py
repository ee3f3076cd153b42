"""How the benchmarks parse the answers of other tools."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.answers import place_in_memleak, place_in_valgrind

MEMLEAK = """\
Attaching to pid 4242, Ctrl+C to quit.
[20:00:00] Top 10 stacks with outstanding allocations:
\t1000 bytes in 1 allocations from stack
\t\tplanted_leak+0x1a [libplanted.so]
[20:00:05] Top 10 stacks with outstanding allocations:
\t64 bytes in 1 allocations from stack
\t\tfirst_of_all+0x10 [server]
\t2000 bytes in 2 allocations from stack
\t\tplanted_leak+0x1a [libplanted.so]
\t\tread+0x10 [libplanted.so]
\t9000 bytes in 3 allocations from stack
\t\tfill_cache+0x10 [server]
"""

VALGRIND = """\
<valgrindoutput>
<error><kind>Leak_StillReachable</kind><xwhat><leakedbytes>100</leakedbytes></xwhat>
<stack><frame><fn>malloc</fn></frame><frame><fn>planted_leak</fn></frame></stack></error>
<error><kind>InvalidRead</kind><stack><frame><fn>planted_leak</fn></frame></stack></error>
<error><kind>Leak_DefinitelyLost</kind><xwhat><leakedbytes>2000</leakedbytes></xwhat>
<stack><frame><fn>malloc</fn></frame><frame></frame><frame><fn>main</fn></frame></stack></error>
</valgrindoutput>
"""


@pytest.mark.parametrize(
    ("function", "place"), [("fill_cache", 1), ("planted_leak", 2), ("first_of_all", 3), ("main", None)]
)
def test_memleaks_last_report_is_read_from_its_end(function, place):
    """It prints the most outstanding last, and an older report does not count."""
    assert place_in_memleak(MEMLEAK, (function,)) == place


def test_the_place_is_that_of_the_first_of_the_functions():
    """A program may leak in several."""
    assert place_in_memleak(MEMLEAK, ("first_of_all", "planted_leak")) == 2


def test_memleak_that_has_not_reported_names_nobody():
    """Before its first report there is nothing to read."""
    assert place_in_memleak("Attaching to pid 4242, Ctrl+C to quit.\n", ("planted_leak",)) is None


@pytest.mark.parametrize(("function", "place"), [("main", 1), ("planted_leak", 2), ("fill_cache", None)])
def test_valgrinds_leaks_are_placed_by_bytes(tmp_path: Path, function, place):
    """All kinds of leaks together; other errors do not count, and a frame may have no name."""
    (tmp_path / "valgrind.4242.xml").write_text(VALGRIND)

    assert place_in_valgrind(tmp_path, (function,)) == place
