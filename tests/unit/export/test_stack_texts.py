"""Collapsed stacks and speedscope: the same figures in two formats."""

from __future__ import annotations

import json

import pytest

from bpfleakd.export.collapsed import collapsed_stacks
from bpfleakd.export.speedscope import speedscope_profile
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.code.stack import StackEnd
from bpfleakd.model.report import HeapProfile

from ..samples import HOSTILE, a_frame, a_report, a_site

FIGURES = {
    StackValue.LIVE_BYTES: {"live_bytes": 23},
    StackValue.LIVE_COUNT: {"live_count": 23},
    StackValue.ALLOCATED_BYTES: {"allocated_bytes": 23},
    StackValue.ALLOCATED_COUNT: {"allocated_count": 23},
    StackValue.GROWTH: {"growth_bytes_per_s": 23.4},
}


def test_a_line_a_stack_outermost_first():
    """The format of flamegraph.pl."""
    text = collapsed_stacks(a_report(sites=(a_site(live_bytes=23),)), StackValue.LIVE_BYTES)
    assert text == "_start;main;leak_here;malloc 23\n"


def test_equal_stacks_are_one_line():
    """Sites of different kinds may have one stack."""
    sites = (a_site(live_bytes=23), a_site(live_bytes=101))
    assert collapsed_stacks(a_report(sites=sites), StackValue.LIVE_BYTES).endswith(" 124\n")


@pytest.mark.parametrize(("value", "figure"), FIGURES.items())
def test_each_figure_can_be_drawn(value, figure):
    """And each is labelled."""
    report = a_report(sites=(a_site(**figure),))
    assert collapsed_stacks(report, value).endswith(" 23\n")
    profiles = json.loads(speedscope_profile(HeapProfile(0.0, report, ())))["profiles"]
    (profile,) = [profile for profile in profiles if profile["name"] == value]
    assert (profile["weights"], profile["endValue"]) == ([23], 23)


def test_what_is_freed_or_shrinks_is_not_drawn():
    """A width cannot be negative."""
    report = a_report(sites=(a_site(live_bytes=0, growth_bytes_per_s=-5.0),))
    assert collapsed_stacks(report, StackValue.LIVE_BYTES) == ""
    assert collapsed_stacks(report, StackValue.GROWTH) == ""


@pytest.mark.parametrize("name", [HOSTILE, "a;b", "a b"])
def test_names_cannot_break_a_line(name):
    """The separators are ours: a semicolon, and the last space."""
    text = collapsed_stacks(
        a_report(sites=(a_site(live_bytes=5, stack=(a_frame(name), a_frame("main"))),)), StackValue.LIVE_BYTES
    )
    stack, _, value = text.removesuffix("\n").rpartition(" ")
    assert value == "5"
    assert len(stack.split(";")) == 2
    assert stack.isprintable()


def test_a_stack_that_is_not_whole_says_so():
    """It gets a root frame of its own, and is not beside main."""
    site = a_site(live_bytes=5, stack=(a_frame("malloc"),), truncated=StackEnd.NO_RULE)
    nothing = a_site(live_bytes=5, stack=(), truncated=None)
    text = collapsed_stacks(a_report(sites=(site, nothing)), StackValue.LIVE_BYTES)
    assert text == "[truncated];malloc 5\n[no stack] 5\n"


def test_speedscope_frames_are_shared():
    """Once each, with file and line where they are known."""
    report = a_report(sites=(a_site(live_bytes=5), a_site(live_bytes=7)))
    document = json.loads(speedscope_profile(HeapProfile(0.0, report, ())))
    frames = document["shared"]["frames"]
    assert {"name": "leak_here", "file": "/src/leaky.c", "line": 23} in frames
    assert len(frames) == 4
    for profile in document["profiles"]:
        assert all(0 <= frame < 4 for sample in profile["samples"] for frame in sample)
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"]
    first = document["profiles"][document["activeProfileIndex"]]
    assert [frames[index]["name"] for index in first["samples"][0]] == [
        "_start",
        "main",
        "leak_here",
        "malloc",
    ]
