"""Screens: every line fits, the selected row is visible, and the requested content is readable."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from bpfleakd.cli.live.feed import Answer, Question
from bpfleakd.cli.live.screen import draw
from bpfleakd.cli.live.state import Page, View
from bpfleakd.errors import NotAttached
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.history import StoredHistory, StoredSite
from bpfleakd.model.process import TracingMode
from bpfleakd.model.resources import (
    DescriptorSite,
    DescriptorTotals,
    ResourceKind,
    ResourceShare,
    ResourceUse,
)
from bpfleakd.model.site import AllocationKind
from bpfleakd.model.verdict import Verdict

from ...samples import (
    HOSTILE,
    a_frame,
    a_grouped_report,
    a_process,
    a_process_verdict,
    a_report,
    a_site,
    a_traced_process,
    a_watched_process,
)

SITES = tuple(a_site(f"function_{n}", site=f"{n:016x}", live_bytes=n * 1024) for n in range(101))
SITE_PAGE = View(pid=4711, alone=True)
ANSWER = Answer(Question(4711), report=a_report(sites=SITES))


def lines_of(view, answer, width=80, height=24, **options):
    """Return the lines as plain text, and what keys act on."""
    drawn = draw(view, answer, width, height, **options)
    # Wider than the screen, so that a line that does not fit shows.
    console = Console(file=io.StringIO(), width=max(width, 20), height=height, color_system=None)
    console.print(drawn.renderable)
    return console.file.getvalue().splitlines(), drawn.shown


def a_history(site, *low_bytes):
    ends_s = tuple(5.0 * (place + 1) for place in range(len(low_bytes)))
    saved = StoredSite(site, AllocationKind.HEAP, "f", "m", 1, 1, low_bytes, (), (), (), ())
    return StoredHistory(1, "leaky", 60.0, 0.0, 0, 0, ends_s, (), (), (), (saved,))


def with_descriptors(function="fetch_order", **changes):
    """A report of a process whose open files grow by 40 a minute at one call site."""
    site = DescriptorSite(
        site="5d41402abc4b2a76",
        function=function,
        module="/opt/shop",
        location="shop.c:12",
        open_count=2_345,
        opened_count=2_400,
        growth_per_min=40.0,
        oldest_age_s=311.0,
        verdict=Verdict.LEAK,
        confidence=0.9,
        stack=(a_frame(function), a_frame("main")),
        truncated=None,
        shares=(ResourceShare("pipes", 1.0),),
    )
    reason = "file descriptors grow: 40/min"
    use = ResourceUse(ResourceKind.DESCRIPTORS, 2_345, 4_096, 40.0, Verdict.LEAK, 0.9, reason)
    return replace(
        a_report(sites=SITES),
        resources=(use,),
        descriptor_sites=(replace(site, **changes),),
        descriptor_totals=DescriptorTotals(2_345, 2_345, 0, 0, 0.0, ""),
    )


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
@pytest.mark.parametrize("height", [1, 3, 8, 24, 150])
@pytest.mark.parametrize("page", list(Page))
def test_every_screen_fills_its_terminal_exactly(page, width, height):
    """However small that is, and whatever the names are."""
    site = a_site(HOSTILE * 3, reason="because " * 30, stack=tuple(a_frame(HOSTILE) for _ in range(61)))
    views = {
        Page.PROCESSES: (
            View(),
            Answer(Question(None), processes=tuple(map(a_traced_process, range(1, 40)))),
        ),
        Page.SITES: (SITE_PAGE, Answer(Question(4711), report=a_report(sites=(site, *SITES)))),
        Page.GROUPS: (
            replace(SITE_PAGE, group=GroupKey.MODULE),
            Answer(Question(4711, group=GroupKey.MODULE), groups=a_grouped_report()),
        ),
        Page.DETAIL: (
            replace(SITE_PAGE, site=site.site),
            Answer(Question(4711), report=a_report(sites=(site,)), history=a_history(site.site, 1, 2, 3)),
        ),
        Page.DESCRIPTORS: (
            replace(SITE_PAGE, descriptors=True),
            Answer(Question(4711), report=with_descriptors(HOSTILE * 3)),
        ),
    }
    view, answer = views[page]
    assert view.page is page
    lines, _shown = lines_of(view, answer, width, height)
    if height >= 8:
        assert len(lines) == height
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("place", [0, 1, 50, 99, 100])
def test_the_selected_row_is_on_the_screen_with_its_stack(place):
    """Wherever it is in the list."""
    view = replace(SITE_PAGE, cursor=SITES[place].site)
    lines, shown = lines_of(view, ANSWER)
    assert any(f"function_{place} " in line for line in lines)
    assert any(line.startswith("      main  leaky") for line in lines)
    assert [row.name for row in shown.rows] == [site.site for site in SITES]
    assert sum("function_" in line for line in lines) == shown.page_rows


def test_a_long_stack_states_the_number_of_hidden_lines():
    """Below a list there is no room for all of it."""
    site = a_site(stack=tuple(a_frame(f"f{n}") for n in range(100)))
    lines, _shown = lines_of(SITE_PAGE, Answer(Question(4711), report=a_report(sites=(site,))))
    shown = sum(line.startswith("      f") for line in lines)
    assert f"      … {100 - shown} more lines (Enter shows all)" in lines


def test_processes_that_leak_come_first():
    """Then those that grow, then the largest; each with its verdict."""
    rows = (
        a_traced_process(1, process=a_process(1, live_bytes=2**30)),
        a_traced_process(2, process_verdict=a_process_verdict(verdict=Verdict.STEADY, leak_bytes_per_s=0.0)),
        a_traced_process(3, process_verdict=a_process_verdict(verdict=Verdict.GROWING)),
        a_traced_process(4, process_verdict=a_process_verdict(leak_bytes_per_s=5.0)),
        a_traced_process(5, process_verdict=a_process_verdict(leak_bytes_per_s=7.0)),
    )
    lines, shown = lines_of(View(), Answer(Question(None), processes=rows))
    assert [row.name for row in shown.rows] == ["5", "4", "3", "1", "2"]
    verdicts = [line.split()[2] for line in lines if " leaky " in line]
    assert verdicts == ["leak", "leak", "growing", "unknown", "steady"]


def test_a_filter_is_a_part_of_a_function_a_module_or_a_place():
    """Upper and lower case alike."""
    report = a_report(
        sites=(
            a_site("Cache::Add", site="a" * 16, location=None, module="/opt/x"),
            a_site("other", site="b" * 16, module="/usr/lib/libcache.so"),
            a_site("third", site="c" * 16, location="/src/cache.c:3"),
            a_site("fourth", site="d" * 16),
        )
    )
    _lines, shown = lines_of(replace(SITE_PAGE, filter="cACHE"), Answer(Question(4711), report=report))
    assert [row.name[0] for row in shown.rows] == ["a", "b", "c"]
    lines, shown = lines_of(replace(SITE_PAGE, filter="nothing"), Answer(Question(4711), report=report))
    assert not shown.rows
    assert "no call site matches" in lines
    assert lines[-1].startswith("/nothing  q quit")


def test_a_group_shows_only_its_call_sites():
    """Enter on a function."""
    groups = Answer(Question(4711, group=GroupKey.FUNCTION), groups=a_grouped_report())
    view = replace(SITE_PAGE, group=GroupKey.FUNCTION)
    _lines, shown = lines_of(view, groups)
    within = replace(view, within=replace(shown.rows[0], sites=(SITES[3].site, SITES[5].site)))
    lines, shown = lines_of(within, ANSWER)
    assert [row.name for row in shown.rows] == [SITES[3].site, SITES[5].site]
    assert lines[0].startswith(f"[{within.within.name}] 4711 leaky")


def test_rows_of_another_grouping_are_not_shown_as_this_one():
    """The daemon has not answered yet."""
    functions = Answer(Question(4711, group=GroupKey.FUNCTION), groups=a_grouped_report())
    lines, shown = lines_of(replace(SITE_PAGE, group=GroupKey.MODULE), functions)
    assert not shown.rows
    assert "waiting for the daemon …" in lines


def test_the_pane_of_a_call_site_has_all_that_is_known_of_it():
    """Why, how it went, in which threads, and every frame."""
    site = a_site(verdict=Verdict.LEAK)
    answer = Answer(
        Question(4711), report=a_report(sites=(site,)), history=a_history(site.site, 0.0, 1024.0, 2048.0)
    )
    view = replace(SITE_PAGE, site=site.site)
    lines, shown = lines_of(view, answer, height=40)
    text = "\n".join(lines)
    assert "leak  83% sure, retains +5.87 KiB/s" in text
    assert site.reason in text
    assert "▁▁▁▁▅▅▅▅████\n0 to 2.00 KiB live, over 15s" in text
    assert "4711 worker" in text
    assert "stack, 4 frames" in text
    assert "      _start  leaky+0x1061" in lines
    assert shown.scroll_max == 0
    assert "____" in "\n".join(lines_of(view, answer, height=40, ascii_only=True)[0])


def test_open_files_that_grow_are_above_the_call_sites_of_memory():
    """Once in words; the key leads to their stacks."""
    report = with_descriptors()
    lines, shown = lines_of(SITE_PAGE, Answer(Question(4711), report=report), width=120)
    assert sum("file descriptors grow: 40/min" in line for line in lines) == 1
    (site,) = (line for line in lines if line.startswith("open files: leak"))
    assert "+40/min  2,345 of 2,400 open  fetch_order shop.c:12" in site
    assert site.endswith("(o shows all)")
    assert len(shown.rows) == len(SITES)

    told = replace(report, process_verdict=a_process_verdict(reason=f"leaks; {report.resources[0].reason}"))
    lines, _shown = lines_of(SITE_PAGE, Answer(Question(4711), report=told), width=120)
    assert sum("file descriptors grow: 40/min" in line for line in lines) == 1

    steady = with_descriptors(growth_per_min=0.0)
    lines, _shown = lines_of(SITE_PAGE, Answer(Question(4711), report=replace(steady, resources=())))
    assert not any("open files: " in line or "descriptors grow" in line for line in lines)


def test_the_pane_of_open_files():
    """Call sites with their stacks; the pane says if nothing is recorded."""
    view = replace(SITE_PAGE, descriptors=True)
    lines, _shown = lines_of(view, Answer(Question(4711), report=with_descriptors()), width=120)
    assert "file descriptors grow: 40/min" in lines
    assert "open file descriptors: 2,345 (2,345 by call sites)" in lines
    assert any(line.startswith("      main ") for line in lines)
    lines, _shown = lines_of(view, ANSWER)
    assert "no descriptors are recorded: they do not grow" in lines


def test_a_pane_that_does_not_fit_scrolls_to_its_last_line():
    """By this many lines."""
    site = a_site(stack=tuple(a_frame(f"f{n}") for n in range(60)))
    answer = Answer(Question(4711), report=a_report(sites=(site,)))
    view = replace(SITE_PAGE, site=site.site)
    _lines, shown = lines_of(view, answer)
    lines, _shown = lines_of(replace(view, scroll=shown.scroll_max), answer)
    assert lines[-2].startswith("      f59 ")


def test_a_call_site_that_left_is_explained():
    """Its blocks may all have been freed."""
    lines, _shown = lines_of(replace(SITE_PAGE, site="f" * 16), ANSWER)
    assert "call site ffffffffffffffff holds no memory any more" in lines


@pytest.mark.parametrize(
    ("view", "answer", "words"),
    [
        (View(), Answer(Question(None)), "no process is traced: bpfleakctl attach PID"),
        (View(filter="x"), Answer(Question(None), processes=(a_traced_process(),)), "no process matches"),
        (View(), None, "waiting for the daemon …"),
        (SITE_PAGE, Answer(Question(4711), report=a_report(sites=())), "no call sites yet"),
        (replace(SITE_PAGE, helping=True), ANSWER, "Any key goes back."),
        (replace(SITE_PAGE, paused=True), ANSWER, "paused 4711 leaky"),
        (View(paused=True), Answer(Question(None), error=NotAttached("")), "paused"),
    ],
)
def test_empty_and_unusual_screens_explain_themselves(view, answer, words):
    """In words, with the way out."""
    assert words in "\n".join(lines_of(view, answer)[0])


def test_losses_are_on_the_screen_but_do_not_fill_it():
    """The rest of them is counted."""
    report = a_report(sites=SITES, losses={f"reason_{n}": n + 1 for n in range(7)}, process=a_process())
    lines, _shown = lines_of(SITE_PAGE, Answer(Question(4711), report=report))
    assert "missed: 3 reason 2" in lines
    assert "… 4 more kinds of losses (--once shows all)" in lines


@pytest.mark.parametrize(
    ("width", "there", "not_there"), [(80, "oldest", "x"), (70, "count", "oldest"), (60, "live", "count")]
)
def test_a_narrow_screen_leaves_figures_out_not_names(width, there, not_there):
    """The function is what one looks for."""
    lines, _shown = lines_of(SITE_PAGE, ANSWER, width)
    header = next(line for line in lines if line.startswith("verdict"))
    assert there in header.split()
    assert not_there not in header.split()
    assert any("function_1 " in line for line in lines)


@pytest.mark.parametrize("estimates", [False, True])
def test_a_method_keeps_its_class_and_a_line_its_file_at_80_columns(estimates):
    """Figures that say less leave, and directories are cut as a whole."""
    name = "shop::orders::SessionStore::remember(long, std::string const&)"
    site = a_site(name, location="/home/somebody/shop/orders/order_service.cpp:78")
    process = a_process(mode=TracingMode.SAMPLED, sample_interval_bytes=65536) if estimates else a_process()
    report = a_report(process=process, sites=(site,))
    lines, _shown = lines_of(SITE_PAGE, Answer(Question(4711), report=report), 80)
    row = next(line for line in lines if line.startswith("leak"))
    assert "SessionStore::remember" in row
    assert row.rstrip().endswith("order_service.cpp:78")


def test_no_figure_of_the_head_is_cut_at_40_columns():
    """It takes more lines instead."""
    lines, _shown = lines_of(SITE_PAGE, ANSWER, 40)
    assert {"exact", "blocks"} <= set(" ".join(lines[:3]).split())


def test_no_key_is_cut_at_40_columns():
    """Its words continue below."""
    lines, _shown = lines_of(replace(SITE_PAGE, helping=True), ANSWER, 40)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (40, "pid comm verdict growth/s"),
        (52, "pid comm verdict live growth/s"),
        (67, "pid comm verdict live growth/s for state"),
    ],
)
def test_a_narrow_list_of_processes_leaves_columns_out(width, titles):
    """What remains is whole."""
    answer = Answer(Question(None), processes=(a_traced_process(4_194_303),))
    lines, _shown = lines_of(View(), answer, width)
    header, row = (line for line in lines if line.lstrip().startswith(("pid ", "4194303 ")))
    assert header.split() == titles.split()
    assert "…" not in row


def test_watched_processes_are_below_those_that_are_traced():
    """In the same list, so that they can be attached to."""
    answer = Answer(
        Question(None),
        processes=(a_traced_process(4711),),
        watched=(a_watched_process(4723), a_watched_process(4711)),
    )
    lines, shown = lines_of(View(), answer, width=100)
    assert [row.name for row in shown.rows] == ["4711", "4723"]
    assert lines[0].startswith("1 traced, 2 watched")
    assert "paused" in next(line for line in lines if "4723" in line)


def test_the_last_line_has_the_position_in_the_list():
    """Counted from one; a plus where more were left out than were asked for."""
    view = replace(SITE_PAGE, cursor=SITES[44].site)
    assert lines_of(view, ANSWER)[0][-1].endswith("45 of 101")
    cut = Answer(Question(4711, limit=101), report=a_report(sites=SITES))
    assert lines_of(view, cut)[0][-1].endswith("45 of 101+")


def test_columns_of_processes_keep_their_place():
    """Whatever the rows on the screen have in them."""
    small, large = (
        a_traced_process(pid, process=a_process(pid, live_bytes=size))
        for pid, size in ((1, 1), (4000000, 2**40))
    )
    lines = [lines_of(View(), Answer(Question(None), processes=(row,)))[0] for row in (small, large)]
    assert lines[0][1] == lines[1][1]


def test_the_order_can_be_turned():
    """The least first."""
    _lines, shown = lines_of(replace(SITE_PAGE, reverse=True), ANSWER)
    assert [row.name for row in shown.rows] == [site.site for site in reversed(SITES)]
