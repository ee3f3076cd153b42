"""The section of `top` on call sites with open file descriptors."""

from __future__ import annotations

from msgspec.structs import replace

from bpfleakd.cli.render.descriptors import all_descriptor_lines, descriptor_lines
from bpfleakd.model.resources import DescriptorSite, DescriptorTotals, ResourceShare
from bpfleakd.model.verdict import Verdict

from ..samples import a_frame, a_report

LEAK = DescriptorSite(
    site="5d41402abc4b2a76",
    function="Client.fetch_order",
    module="client.py",
    location="/srv/shop/client.py:12",
    open_count=2_345,
    opened_count=2_400,
    growth_per_min=40.0,
    oldest_age_s=311.0,
    verdict=Verdict.LEAK,
    confidence=0.9,
    stack=(a_frame("connect"), a_frame("main")),
    truncated=None,
    shares=(ResourceShare("sockets to 10.0.0.5:5432", 0.96),),
)


TOTALS = DescriptorTotals(
    open_count=2_400,
    recorded_count=2_350,
    earlier_count=12,
    other_count=38,
    other_growth_per_min=4.0,
    other_reason="38 came by a way that is not recorded, +4/min, 90% pipes",
)


def lines_of(*sites: DescriptorSite, width: int | None = None, stacks: int = 0) -> list[str]:
    report = replace(a_report(), descriptor_sites=sites, descriptor_totals=TOTALS)
    return [line.plain for line in descriptor_lines(report, width, stacks)]


def test_a_site_and_its_stack():
    """Verdict, rate, open descriptors, where they are opened, and their kind; the sum has those without a
    call site.
    """
    other = replace(LEAK, function=None, growth_per_min=0.0, verdict=Verdict.UNKNOWN, open_count=5, shares=())
    head, others, leak, *stack, last = lines_of(LEAK, other, stacks=1)
    assert head == (
        "open file descriptors: 2,400 (2,350 by call sites, 12 from before the recording, 38 otherwise)"
    )
    assert others == TOTALS.other_reason
    assert leak.split("  ")[0].startswith("leak")
    for words in (
        "+40/min",
        "2,345 of 2,400 open",
        "Client.fetch_order client.py:12",
        "96% sockets to 10.0.0.5",
    ):
        assert words in leak
    assert [line.split()[0] for line in stack] == ["connect", "main"]
    assert "/min" not in last


def test_all_sites_with_their_stacks():
    """In a separate pane of the live view."""
    sites = tuple(replace(LEAK, site=f"{n:016x}") for n in range(7))
    report = replace(a_report(), descriptor_sites=sites, descriptor_totals=TOTALS)
    lines = [line.plain for line in all_descriptor_lines(report, 80)]
    assert sum("fetch_order" in line for line in lines) == 7
    assert sum(line.split()[0] == "connect" for line in lines) == 7
    assert len(all_descriptor_lines(a_report(), 80)) == 1


def test_names_cannot_write_to_the_terminal():
    """A process' function names are made printable, and no line is wider than the terminal."""
    site = replace(LEAK, function="\x1b[2J" + 300 * "x")
    assert all("\x1b" not in line and len(line) <= 80 for line in lines_of(site, width=80))


def test_nothing_unless_descriptors_are_recorded():
    """Then the section is omitted."""
    assert descriptor_lines(a_report(), 80, 3) == []
