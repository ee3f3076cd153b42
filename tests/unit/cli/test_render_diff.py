"""The view of `bpfleakctl diff`, at 80 columns."""

from __future__ import annotations

from msgspec.structs import replace

from bpfleakd.analysis.diff import compared
from bpfleakd.cli.render.diff import diff_view
from bpfleakd.model.report import LeakReport

from ..samples import HOSTILE, a_process, a_report, a_site
from .test_render import drawn


def lines(before: LeakReport, after: LeakReport, limit: int | None = None) -> list[str]:
    return drawn(diff_view(compared(before, after), width=80, limit=limit, stacks=1), 80)


def a_saved(*sizes: int) -> LeakReport:
    sites = [a_site(f"function_{n}", site=f"{n}", live_bytes=size) for n, size in enumerate(sizes) if size]
    return a_report(process=a_process(live_bytes=sum(sizes)), sites=tuple(sites))


def test_changes_and_a_stack() -> None:
    """The largest gain first, with its stack."""
    shown = lines(a_saved(1024, 0, 4096), a_saved(4096, 2048, 0))
    assert shown[shown.index("call sites: 1 new, 1 grown, 0 shrunk, 1 gone, 0 unchanged") + 1 :] == [
        "change     bytes     live     count function",
        "grown  +3.00 KiB 4.00 KiB        +0 function_0 /src/leaky.c:23",
        "      malloc  libc.so.6+0x99e00",
        "      leak_here  leaky  /src/leaky.c:23",
        "      main  leaky  /src/leaky.c:101",
        "      _start  leaky+0x1061",
        "new    +2.00 KiB 2.00 KiB    +4,201 function_1 /src/leaky.c:23",
        "gone   -4.00 KiB      0 B    -4,201 function_2 /src/leaky.c:23",
    ]


def test_the_first_few() -> None:
    """The rest is counted."""
    assert lines(a_saved(), a_saved(1, 2, 3), limit=1)[-1] == "… 2 more call sites (--limit)"


def test_a_report_that_lacks_call_sites() -> None:
    """It may be the reason why others look new or gone."""
    before = a_saved(1)
    before = replace(before, process=replace(before.process, live_bytes=1025))
    words = "before: 1.00 KiB in omitted call sites (--limit 0, suppressed)"
    assert words in lines(before, a_saved(1))


def test_a_past_state() -> None:
    """How exactly it is known, and that small changes are left out."""
    report = compared(a_saved(1), a_saved(2), ("10m ago", "now"))
    report = replace(report, before=replace(report.before, resolution_s=12.5), left_out_sites=7)
    shown = drawn(diff_view(report, width=80, limit=None, stacks=0), 80)
    assert shown[0].startswith("before  4711 leaky  10m ago  live 1 B")
    assert shown[1].startswith("before: the least of each call site within 13s")
    assert shown[2].startswith("after   4711 leaky  now  live 2 B")
    assert shown[-1] == "… 7 call sites that changed less or are suppressed"


def test_hostile_names() -> None:
    """They stay in their line."""
    site = a_site(HOSTILE, module=HOSTILE, location=HOSTILE)
    report = a_report(process=a_process(comm=HOSTILE), sites=(site,))
    assert all(line.isprintable() for line in lines(a_saved(), report))
