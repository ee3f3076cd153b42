"""pprof profiles, read back by Google's protobuf library."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bpfleakd.export.pprof import pprof_profile
from bpfleakd.model.code.mapping import CodeMapping
from bpfleakd.model.report import HeapProfile, SiteReport
from bpfleakd.model.site import ThreadShare

from ..samples import HOSTILE, a_frame, a_report, a_site
from .profile_proto import read_profile

PROGRAM = CodeMapping(0x555555555000, 0x555555557000, 0x1000, "/usr/bin/leaky", "deadbeef")
LIBC = CodeMapping(0x7FFFF7DC0000, 0x7FFFF7F30000, 0x26000, "/lib/x86_64-linux-gnu/libc.so.6", None)


def profile_of(*sites: SiteReport) -> Any:
    return read_profile(pprof_profile(HeapProfile(1_700_000_000.25, a_report(sites=sites), (PROGRAM, LIBC))))


def sums(profile: Any) -> list[int]:
    return [sum(values) for values in zip(*(sample.value for sample in profile.sample), strict=True)]


def names(profile: Any, sample: Any) -> list[list[str]]:
    """The functions of a sample's locations, innermost first."""
    functions = {f.id: profile.string_table[f.name] for f in profile.function}
    lines = {at.id: [functions[line.function_id] for line in at.line] for at in profile.location}
    return [lines[number] for number in sample.location_id]


def labels(profile: Any, sample: Any) -> dict[str, str | int]:
    text = profile.string_table
    return {text[label.key]: text[label.str] if label.str else label.num for label in sample.label}


def test_the_values_are_those_of_go():
    """Viewers choose by name and position."""
    profile = profile_of(a_site())
    text = profile.string_table
    assert [(text[kind.type], text[kind.unit]) for kind in profile.sample_type] == [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ]
    assert text[profile.default_sample_type] == "inuse_space"
    assert text[0] == ""
    assert profile.time_nanos == pytest.approx(1_700_000_000_250_000_000, abs=1_000)


@pytest.mark.parametrize(
    "threads",
    [
        (),
        (ThreadShare(23, "one", 1_000, 3),),
        (ThreadShare(23, "one", 1_000, 3), ThreadShare(24, "", 607, 2)),
        (ThreadShare(23, "counted later than the site", 1 << 40, 1 << 30),),
    ],
)
def test_the_sums_are_those_of_the_sites(threads):
    """However the threads share a site, each figure adds up to the site's."""
    figures = {"live_bytes": 2_003, "live_count": 7, "allocated_bytes": 9_001, "allocated_count": 31}
    assert sums(profile_of(a_site(threads=threads, **figures), a_site("other", threads=(), **figures))) == [
        62,
        18_002,
        14,
        4_006,
    ]


def test_threads_kind_and_site_are_labels():
    """pprof -tagfocus finds them."""
    site = a_site(live_bytes=5, live_count=1, threads=(ThreadShare(23, "worker", 5, 1),))
    profile = profile_of(site)
    assert labels(profile, profile.sample[0]) == {
        "kind": "heap",
        "site": site.site,
        "thread": "worker",
        "tid": 23,
    }


def test_inlined_frames_share_the_location_of_their_function():
    """The innermost first, as the format requires."""
    stack = (
        a_frame("malloc", address=LIBC.start + 23),
        a_frame("inlined", address=PROGRAM.start + 1, inlined=True),
        a_frame("outer", address=PROGRAM.start + 1),
        a_frame("jitted", address=0x1000, module=None),
    )
    profile = profile_of(a_site(stack=stack))
    assert names(profile, profile.sample[0]) == [["malloc"], ["inlined", "outer"], ["jitted"]]
    assert [location.mapping_id for location in profile.location] == [2, 1, 0]


def test_lines_and_files_are_of_their_functions():
    """file:line becomes both."""
    profile = profile_of(a_site(stack=(a_frame(location="/src/a:b/leaky.c:23"), a_frame("x", location="?"))))
    assert [profile.string_table[function.filename] for function in profile.function] == [
        "/src/a:b/leaky.c",
        "",
    ]
    assert [location.line[0].line for location in profile.location] == [23, 0]


def test_mappings_have_their_build_ids():
    """Servers that symbolise by themselves find the files by these."""
    profile = profile_of(a_site())
    found = [
        (m.memory_start, m.memory_limit, m.file_offset, profile.string_table[m.filename])
        for m in profile.mapping
    ]
    assert found == [(m.start, m.end, m.offset, m.path) for m in (PROGRAM, LIBC)]
    assert [profile.string_table[m.build_id] for m in profile.mapping] == ["deadbeef", ""]


def test_hostile_names_are_text():
    """Whatever a program calls its functions, the profile can be read."""
    profile = profile_of(a_site(stack=(a_frame(HOSTILE, location=f"{HOSTILE}:1"),)))
    assert all(text.isprintable() for text in profile.string_table)


def test_frames_without_a_name_have_their_place():
    """Module and offset, or at least the address."""
    stack = (a_frame(None, module="/lib/x.so", offset=0x23), a_frame(None, module=None, address=0x1234))
    profile = profile_of(a_site(stack=stack))
    assert names(profile, profile.sample[0]) == [["x.so+0x23"], ["0x1234"]]


def test_nothing_outstanding_is_a_profile_too():
    """An empty one."""
    assert len(profile_of().sample) == 0


def test_leaves_are_the_functions_to_blame():
    """pprof drops what these call; a function that is blamed elsewhere stays, and so do its callers."""
    wrapped = a_site(
        "shop::remember(int)",
        stack=tuple(
            map(
                a_frame,
                ("malloc", "operator new(unsigned long)", "pool<int>::get()", "shop::remember(int)", "main"),
            )
        ),
        module=a_frame("x").module,
    )
    pool = a_site(
        "pool<int>::get()",
        stack=tuple(map(a_frame, ("malloc", "pool<int>::get()", "main"))),
        module=a_frame("x").module,
    )
    profile = profile_of(wrapped, pool)
    pattern = profile.string_table[profile.drop_frames]
    assert re.fullmatch(pattern, "malloc")
    assert re.fullmatch(pattern, "operator new")
    assert not any(
        re.fullmatch(pattern, name) for name in ("pool<int>::get", "shop::remember", "main", "mallocs")
    )


def test_the_pattern_has_names_as_go_tool_pprof_shortens_them():
    """Without template arguments; a short name that an outer function has, too, stays."""
    inner = (
        "pool<a<int> >::get(f(*)(int)) const",
        "(anonymous namespace)::grow<char>()",
        "list<int>::add(int)",
    )
    site = a_site(
        "shop::remember(int)",
        stack=tuple(map(a_frame, (*inner, "shop::remember(int)", "list<shop>::add(shop)"))),
        module=a_frame("x").module,
    )
    profile = profile_of(site)
    pattern = profile.string_table[profile.drop_frames]
    assert re.fullmatch(pattern, "pool::get const")
    assert re.fullmatch(pattern, "::grow")
    assert re.fullmatch(pattern, "list<int>::add")
    assert not re.fullmatch(pattern, "list::add")


def test_names_in_the_pattern_are_text():
    """Whatever characters of patterns are in them."""
    site = a_site(
        "f",
        stack=tuple(map(a_frame, ("a.b[c]$^|{1}?*+\\\\", "(anonymous namespace)::g(int)", "f"))),
        module=a_frame("x").module,
    )
    profile = profile_of(site)
    pattern = profile.string_table[profile.drop_frames]
    assert re.fullmatch(pattern, "(anonymous namespace)::g")
    assert re.fullmatch(pattern, "a.b[c]$^|{1}?*+\\\\")
