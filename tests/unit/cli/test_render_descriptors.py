"""The section of `top` on call sites with open file descriptors."""

from __future__ import annotations

from dataclasses import replace

from bpfleakd.cli.render.descriptors import descriptor_lines
from bpfleakd.model.resources import DescriptorSite, ResourceShare
from bpfleakd.model.verdict import Verdict

from ..samples import a_frame

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


def test_a_site_and_its_stack():
    """Verdict, rate, what is open, where it is opened, and what it is."""
    other = replace(LEAK, function=None, growth_per_min=0.0, verdict=Verdict.UNKNOWN, open_count=5, shares=())
    head, leak, *stack, last = [line.plain for line in descriptor_lines([LEAK, other], None, 1)]
    assert head.startswith("2,350 open file descriptors")
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


def test_names_cannot_write_to_the_terminal():
    """What a process calls its functions is made printable, and a line is no wider than the terminal."""
    site = replace(LEAK, function="\x1b[2J" + 300 * "x")
    lines = [line.plain for line in descriptor_lines([site], 80, 0)]
    assert all("\x1b" not in line and len(line) <= 80 for line in lines)


def test_nothing_without_sites():
    """Then there is no section."""
    assert descriptor_lines([], 80, 3) == []
