"""How a report shows an OOM kill."""

from __future__ import annotations

from msgspec.structs import replace

from bpfleakd.cli.render.report import oom_lines, reports_view
from bpfleakd.model.address_space import BillKind, BillLine
from bpfleakd.model.container import ContainerBill, ContainerKind, ContainerLine
from bpfleakd.model.oom import OomKill
from bpfleakd.model.process import ProcessState

from ..samples import a_process, a_report
from .test_render import drawn

MIB = 1 << 20
CONTAINER = ContainerBill(
    "/shop",
    2,
    64 * MIB,
    63 * MIB,
    (
        ContainerLine(ContainerKind.ANON, 60 * MIB, None, 60 * MIB),
        ContainerLine(ContainerKind.FILE, 3 * MIB, None, 0),
    ),
)
LINES = (BillLine(BillKind.HEAP_LIVE, 40 * MIB, 2e6), BillLine(BillKind.HEAP_FREE, 9 * MIB, 0.0, "2 arenas"))
KILL = OomKill(60 * MIB, 5 * MIB, 0, 88 << 10, LINES, 1.5, "memory grows", CONTAINER)


def test_an_oom_report_has_memory_and_its_bill():
    """At the kill by the kernel, and shortly before by the bill."""
    assert oom_lines(KILL) == [
        "killed by the kernel because memory had run out: it had 60.0 MiB anonymous, 5.00 MiB files, "
        "88.0 KiB page tables",
        "1s before: 40.0 MiB heap_live, 9.00 MiB heap_free (2 arenas)",
        "memory grows",
        "its container: 63.0 MiB of 64.0 MiB: 60.0 MiB anon, 3.00 MiB file",
    ]


def test_unknown_figures_are_left_out():
    """An old kernel reports the killed process and no more; there may have been no time for a bill."""
    assert oom_lines(OomKill(None, None, None, None)) == ["killed by the kernel because memory had run out"]


def test_why_there_is_no_bill():
    """Or none that is newer."""
    none = OomKill(None, None, None, None, bill_missing="its memory had not been read before")
    assert oom_lines(none)[1:] == ["no bill of its memory: its memory had not been read before"]
    older = replace(KILL, bill_missing="it does not answer")
    assert oom_lines(older)[2] == "no later bill of its memory: it does not answer"


def test_a_victim_that_was_watched_has_no_call_sites():
    """And says why."""
    process = a_process(state=ProcessState.OOM, mode="watch", live_bytes=0, live_count=0, allocated_count=0)
    report = replace(a_report(process=process), oom=KILL, sites=(), process_verdict=None, losses={})
    lines = drawn(reports_view([report], width=100, stacks=3), 100)
    assert lines[0].startswith("4711 leaky (oom)")
    assert lines[1].startswith("killed by the kernel")
    assert lines[-1] == "no call sites: it was watched, and not traced"
