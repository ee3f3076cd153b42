"""The view of `bpfleakctl scan`, at 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from bpfleakd.cli.render.scan import scan_view
from bpfleakd.model.scan import ReachabilitySums, ScanCaveat, ScanMethod

from ..samples import a_scan_report, a_scanned_site
from .test_render import drawn


def lines(**changes: Any) -> list[str]:
    return drawn(scan_view(a_scan_report(**changes), width=80), 80)


def test_sums_stacks_and_blocks() -> None:
    """Lost blocks first; the time the process was stopped; what was not judged."""
    assert lines() == [
        "4711 leaky  live 4.77 MiB in 10,007 blocks  +7.82 KiB/s  attached 3m31s  exact",
        "scanned 101 MiB in 1.3 s; the process was stopped for 23 ms",
        "2.00 MiB     2 directly lost",
        "1.01 KiB     1 indirectly lost: only lost blocks point to them",
        "  1009 B     1 possibly lost: only interior pointers lead to them",
        "3.91 MiB 9,001 still reachable",
        "not judged: 1.96 KiB in 3 blocks younger than 1m00s (--older-than)",
        "",
        "site 5d41402abc4b2a76: 2.00 MiB in 2 blocks directly lost, 1.01 KiB in 1 block",
        "indirectly lost, 2.00 KiB in 2 blocks still reachable",
        "      malloc  libc.so.6+0x99e00",
        "      leak_here  leaky  /src/leaky.c:23",
        "      main  leaky  /src/leaky.c:101",
        "      _start  leaky+0x1061",
        "address             size   age thread      kind",
        "0x5555557592a0 1,048,576 3m13s 4711 worker directly lost",
        "0x5555558592a0     1,031 1m01s 4711 worker indirectly lost",
        "… 1 more blocks (--limit lists more)",
    ]


def test_nothing_is_lost() -> None:
    """Figures of the rest, and no sites."""
    sums = ReachabilitySums(still_reachable_bytes=23, still_reachable_count=2)
    assert lines(sums=sums, sites=(), young_count=0)[2:] == [
        " 0 B 0 directly lost",
        " 0 B 0 indirectly lost: only lost blocks point to them",
        " 0 B 0 possibly lost: only interior pointers lead to them",
        "23 B 2 still reachable",
    ]


def test_sites_without_blocks() -> None:
    """They were not requested."""
    site = a_scanned_site(blocks=(), left_out_count=3)
    assert lines(sites=(site,))[-1] == "      _start  leaky+0x1061"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (ScanMethod.PARTLY_STOPPED, "the process was stopped for 23 ms and read twice"),
        (ScanMethod.RUNNING, "the process was not stopped and read twice"),
    ],
)
def test_how_it_was_read(method: ScanMethod, words: str) -> None:
    """Said in a line."""
    assert lines(method=method)[1] == f"scanned 101 MiB in 1.3 s; {words}"


def test_suppressed_sites_have_a_line() -> None:
    """By which pattern, and how much."""
    sums = ReachabilitySums(possibly_lost_bytes=576, possibly_lost_count=2)
    assert "suppressed by leak:^allocate_dtv$: 576 B in 2 blocks possibly lost" in lines(
        suppressed={"^allocate_dtv$": sums}
    )


def test_freed_memory_counts_as_in_use_where_it_is_not_recognised() -> None:
    """Stated if freed memory counts as in use."""
    words = "note: freed memory counts as in use"
    assert words in lines(known_heap_bytes=0)
    assert words not in lines()


def test_caveats() -> None:
    """Every caveat has a text."""
    notes = [line for line in lines(caveats=tuple(ScanCaveat)) if line.startswith("note: ")]
    assert len(set(notes)) == len(ScanCaveat)
