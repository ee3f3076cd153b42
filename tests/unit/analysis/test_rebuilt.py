"""Call sites over a rebuild: the same function is the same site, and nothing else is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bpfleakd.analysis.diff import compared
from bpfleakd.analysis.rebuilt import key_by_names, modules_built_anew
from bpfleakd.model.code.stack import Frame
from bpfleakd.model.difference import SiteChange
from bpfleakd.model.report import LeakReport, SiteReport

from ..samples import a_process, a_report, a_site
from .frames import jit, native

LIBC = native("malloc", "/lib/libc.so.6", 0x99E00)
OLD, NEW = "0d" * 20, "0e" * 20
ANEW = frozenset({"shop"})


def a_saved(build_id: str, *sites: SiteReport, module: str = "/opt/shop-1/shop") -> LeakReport:
    report = a_report(process=a_process(live_bytes=0), sites=sites)
    return replace(report, build_ids={"/lib/libc.so.6": "5c" * 20, module: build_id})


def site(name: str, *stack: Frame, live: int = 100) -> SiteReport:
    return a_site(stack[1].function, site=name, live_bytes=live, live_count=live // 10, stack=stack)


def old(function: str | None, offset: int = 0x1150, **changes: object) -> Frame:
    return replace(native(function, "/opt/shop-1/shop", offset), **changes)


def new(function: str | None, offset: int = 0x2250, **changes: object) -> Frame:
    return replace(native(function, "/opt/shop-2/shop", offset), **changes)


def test_what_moved_is_the_same() -> None:
    """The added function is new, the removed one is gone, the leak has grown."""
    before = a_saved(OLD, site("a", LIBC, old("leak")), site("b", LIBC, old("went")))
    after = a_saved(
        NEW, site("c", LIBC, new("leak"), live=170), site("d", LIBC, new("came")), module="/opt/shop-2/shop"
    )
    report = compared(before, after)
    assert [(one.function, one.change, one.before_site, one.site) for one in report.sites] == [
        ("came", SiteChange.NEW, None, "d"),
        ("leak", SiteChange.GROWN, "a", "c"),
        ("went", SiteChange.GONE, "b", "b"),
    ]
    assert (report.built_anew, report.unchanged_count) == (("shop",), 0)
    assert report.sites[1].after_bytes - report.sites[1].before_bytes == 70


def test_what_holds_as_much_is_unchanged() -> None:
    """It is neither gone nor new."""
    report = compared(a_saved(OLD, site("a", LIBC, old("leak"))), a_saved(NEW, site("c", LIBC, new("leak"))))
    assert (report.sites, report.unchanged_count) == ((), 1)


def test_two_lines_of_one_function() -> None:
    """Names do not tell them apart: they are summed up."""
    before = a_saved(OLD, site("a", LIBC, old("leak", 0x1150)), site("b", LIBC, old("leak", 0x1160), live=30))
    after = a_saved(NEW, site("c", LIBC, new("leak", 0x2250)), site("d", LIBC, new("leak", 0x2260), live=80))
    (one,) = compared(before, after).sites
    assert (one.before_bytes, one.after_bytes, one.before_site, one.site) == (130, 180, "a", "c")


def test_in_the_same_build_names_do_not_count() -> None:
    """Two lines of one function, of which one was freed and the other came."""
    before, after = (
        a_saved(OLD, site(name, LIBC, old("leak", at))) for name, at in (("a", 0x1150), ("b", 0x1160))
    )
    report = compared(before, after)
    assert {one.change for one in report.sites} == {SiteChange.NEW, SiteChange.GONE}
    assert report.built_anew == ()


def test_a_file_of_which_nothing_is_known() -> None:
    """Reports of before build-ids were in them: only fingerprints count."""
    before = replace(a_saved(OLD, site("a", LIBC, old("leak"))), build_ids={})
    after = a_saved(NEW, site("c", LIBC, new("leak")))
    assert modules_built_anew(before, after) == frozenset()
    assert len(compared(before, after).sites) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (old("leak"), new("leak"), True),
        (old("leak"), new("leaks"), False),
        (old("leak.isra.0"), new("leak.constprop.1.cold"), True),
        (old("leak(int) [clone .part.0]"), new("leak(int)"), True),
        (old(None, 0x1150), new(None, 0x1150), True),
        (old(None, 0x1150), new(None, 0x1160), False),
        (jit("Cart::Add", address=1), jit("Cart::Add", address=2), True),
        (native("f", "/lib/libcart.so.1.2", 7), native("f", "/lib/libcart.so.1.3", 7), True),
        (native("f", "/lib/libcart.so.1", 7), native("f", "/lib/libcart.so.1", 8), False),
    ],
)
def test_frames(one: Frame, other: Frame, same: bool) -> None:
    """A named frame of a rebuilt file matches by function; any other by its place in the file."""
    keys = [
        key_by_names(site("x", LIBC, frame, main), ANEW)
        for frame, main in ((one, old("main")), (other, new("main")))
    ]
    assert None not in keys
    assert (keys[0] == keys[1]) is same


def test_inlined_frames_do_not_matter() -> None:
    """The compiler may do it differently the next time."""
    inlined = replace(new("std::make_unique"), inlined=True)
    keys = [
        key_by_names(site("x", *frames), ANEW)
        for frames in ((LIBC, old("leak")), (LIBC, inlined, new("leak")))
    ]
    assert keys[0] == keys[1]


def test_a_stack_through_nothing_that_was_built_anew() -> None:
    """Its fingerprint is as good as ever."""
    assert key_by_names(site("x", LIBC, native("f", "/lib/other.so", 1)), ANEW) is None
