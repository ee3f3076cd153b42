"""Keys and what becomes of the view."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bpfleakd.cli.live.state import Action, Page, Row, ShownRows, View, pressed, selected_index
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.report import SortKey

PIDS = ShownRows((Row("101"), Row("103"), Row("107")), page_rows=2)
SITES = ShownRows(tuple(map(Row, "abcdefg")), page_rows=3)
GROUPS = ShownRows((Row("f", ("a", "b")), Row("g", ("c",))), page_rows=2)


def after(view, shown, *keys):
    for key in keys:
        view = pressed(view, key, shown)
    return view


def selected(view, shown):
    return shown.rows[selected_index(view, shown.rows)].name


def test_the_first_row_is_selected_until_another_is():
    """So the worst leak is visible, whichever it is."""
    view = View(pid=7)
    assert selected(view, SITES) == "a"
    assert selected(view, ShownRows((Row("x"), Row("a")))) == "x"
    moved = after(view, SITES, "down", "up")
    assert selected(moved, ShownRows((Row("x"), Row("a")))) == "a"
    assert selected(after(moved, SITES, "home"), ShownRows((Row("x"), Row("a")))) == "x"


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["down"], "b"),
        (["j", "j", "k"], "b"),
        (["up"], "a"),
        (["page-down"], "d"),
        (["end"], "g"),
        (["end", "down"], "g"),
        (["end", "page-up"], "d"),
    ],
)
def test_the_selection_moves_and_stays_in_the_list(keys, name):
    """At the ends it stops."""
    assert selected(after(View(pid=7), SITES, *keys), SITES) == name


def test_a_selected_row_stays_selected_where_it_goes():
    """And the one in its place takes over when it leaves."""
    view = after(View(pid=7), SITES, "down", "down")
    assert selected(view, ShownRows((Row("c"), Row("b"), Row("a")))) == "c"
    assert selected(view, ShownRows((Row("a"), Row("b"), Row("x")))) == "x"
    assert selected(view, ShownRows((Row("a"),))) == "a"


def test_pages_lie_on_each_other():
    """Enter opens a process, a group, its call sites, one of them; left returns to the previous page."""
    processes = after(View(group=GroupKey.FUNCTION), PIDS, "down")
    groups = after(processes, PIDS, "enter")
    assert (groups.page, groups.pid) == (Page.GROUPS, 103)
    within = after(groups, GROUPS, "down", "right")
    assert (within.page, within.within) == (Page.SITES, Row("g", ("c",)))
    detail = after(within, SITES, "down", "enter")
    assert (detail.page, detail.site) == (Page.DETAIL, "b")
    back = after(detail, ShownRows(), "left")
    assert (back.page, selected(back, SITES)) == (Page.SITES, "b")
    back = after(back, SITES, "escape")
    assert (back.page, selected(back, GROUPS)) == (Page.GROUPS, "g")
    back = after(back, GROUPS, "left")
    assert (back.page, selected(back, PIDS)) == (Page.PROCESSES, "103")
    assert after(back, PIDS, "left") == back


def test_a_process_by_itself_has_no_list_behind_it():
    """`top --pid` stays with it."""
    view = View(pid=7, alone=True)
    assert after(view, SITES, "left", "escape", "backspace") == view


@pytest.mark.parametrize(
    ("key", "sort"),
    list(zip("vglc", [SortKey.VERDICT, SortKey.GROWTH, SortKey.LIVE, SortKey.COUNT], strict=True)),
)
def test_letters_sort(key, sort):
    """The selected row stays selected."""
    view = after(View(pid=7, sort=SortKey.COUNT if key != "c" else SortKey.LIVE), SITES, "down", key)
    assert (view.sort, view.cursor) == (sort, "b")


@pytest.mark.parametrize(
    ("key", "group"),
    list(zip("sfmt", [GroupKey.SITE, GroupKey.FUNCTION, GroupKey.MODULE, GroupKey.THREAD], strict=True)),
)
def test_letters_group(key, group):
    """From anywhere in a process but the detail pane."""
    view = View(pid=7, group=GroupKey.MODULE, within=Row("m"), cursor="b")
    assert pressed(view, key, SITES) == View(pid=7, group=group)


def test_letters_are_a_filter_while_one_is_typed():
    """Also those that are commands; Enter keeps it, Escape clears it."""
    typing = after(View(pid=7), SITES, "/", *"qfx", "backspace", " ")
    assert (typing.filter, typing.typing, typing.quitting) == ("qf ", True, False)
    kept = after(typing, SITES, "enter")
    assert (kept.filter, kept.typing) == ("qf ", False)
    assert after(kept, SITES, "escape").filter == ""
    assert after(typing, SITES, "escape") == View(pid=7)
    assert after(typing, SITES, "up") == typing


def test_pause_help_and_quit():
    """Space twice is nothing, any key leaves the help."""
    view = View(pid=7)
    assert after(view, SITES, " ").paused
    assert after(view, SITES, " ", " ") == view
    assert after(view, SITES, "?").helping
    assert after(view, SITES, "?", "g") == view
    assert after(view, SITES, "q").quitting
    assert after(view, SITES, "?", "q").quitting


def test_a_detail_pane_scrolls_within_its_lines():
    """And sorts and groups nothing."""
    shown = ShownRows(page_rows=5, scroll_max=8)
    view = View(pid=7, site="a")
    assert [
        after(view, shown, *keys).scroll for keys in (["down"], ["up"], ["end", "j"], ["page-down"] * 2)
    ] == [
        1,
        0,
        8,
        8,
    ]
    assert after(view, shown, "g", "f", "/") == view


def test_open_files_lie_on_the_page_of_their_process():
    """They scroll; closing them shows the page below again."""
    view = after(View(pid=7, group=GroupKey.MODULE), GROUPS, "down")
    opened = after(view, GROUPS, "o")
    assert opened.page is Page.DESCRIPTORS
    assert after(opened, ShownRows(page_rows=5, scroll_max=8), "end", "g", "/") == replace(opened, scroll=8)
    assert after(opened, ShownRows(), "left") == view
    assert after(View(), PIDS, "o") == View()


@given(
    st.lists(st.sampled_from([*"qvglcsfmto/? jkx", "up", "down", "left", "right", "enter", "escape", "end"]))
)
def test_no_sequence_of_keys_breaks_the_view(keys):
    """Whatever is on the screen: nothing, pids, sites."""
    view = View()
    for place, key in enumerate(keys):
        on_screen = PIDS if view.page is Page.PROCESSES else (ShownRows(), SITES, GROUPS)[place % 3]
        view = replace(pressed(view, key, on_screen), quitting=False)
        assert view.pid in (None, 101, 103, 107)
        assert not (view.pid is None and (view.site or view.within or view.descriptors))


def test_the_same_sort_key_again_turns_the_order():
    """Another one begins with the largest."""
    view = after(View(pid=7), SITES, "g")
    assert (view.sort, view.reverse) == (SortKey.GROWTH, False)
    assert after(view, SITES, "g").reverse
    assert not after(view, SITES, "g", "l").reverse


@pytest.mark.parametrize(("key", "action"), [("d", Action.DETACH), ("y", Action.TYPES)])
def test_keys_that_stop_something_ask_first(key, action):
    """Any key but y is a no."""
    asking = after(View(), PIDS, "down", key)
    assert asking.asking == (action, 103)
    assert after(asking, PIDS, "y").acting == (action, 103)
    assert after(asking, PIDS, "enter") == replace(asking, asking=None)


def test_an_action_is_of_the_open_process_or_the_selected_one():
    """And to none if there is none."""
    assert after(View(), PIDS, "x").acting == (Action.SCAN, 101)
    assert after(View(pid=7), SITES, "x").acting == (Action.SCAN, 7)
    assert after(View(), ShownRows(), "a") == View()


def test_a_result_is_scrolled_and_left():
    """By the keys of every page."""
    view = View(reading=True)
    shown = ShownRows(page_rows=3, scroll_max=5)
    assert after(view, shown, "page-down", "page-down").scroll == 5
    assert after(view, shown, "down", "left") == View()
    assert after(view, shown, "q").quitting
