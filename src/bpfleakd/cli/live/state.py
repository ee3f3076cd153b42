"""The state of the screen of `bpfleakctl top`, and how a key changes it.

Rules:
- Keys only change the View. `pressed` is a function of the view, the key and the visible rows.
- A row is selected by its name, not by its place: it stays selected wherever the next answer puts it. Before
  anything is selected it is the first row, whatever that is; a row that has left hands over to the one in its
  place.
- Pages lie on each other: processes, groups of a process or its call sites, the call sites of a group, one
  call site, or those that open file descriptors. Left and Escape take the topmost away; the one below is as
  it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from bpfleakd.cli.live import keys
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.report import SortKey

_SORTS = {"v": SortKey.VERDICT, "g": SortKey.GROWTH, "l": SortKey.LIVE, "c": SortKey.COUNT}
_GROUPS = {"s": GroupKey.SITE, "f": GroupKey.FUNCTION, "m": GroupKey.MODULE, "t": GroupKey.THREAD}
_FILTER_CHARS = 64


class Action(StrEnum):
    """An action of a key on the open or selected process."""

    ATTACH = "attach"
    DETACH = "detach"
    SCAN = "scan"
    TYPES = "types"
    EXPORT = "export"


_ACTIONS = {
    "a": Action.ATTACH,
    "d": Action.DETACH,
    "x": Action.SCAN,
    "y": Action.TYPES,
    "e": Action.EXPORT,
}
# These need confirmation: the first ends the recording, the second stops the process for a while.
_CONFIRMED = {Action.DETACH, Action.TYPES}


class Page(StrEnum):
    """What the screen shows."""

    PROCESSES = "processes"
    SITES = "sites"
    GROUPS = "groups"
    DETAIL = "detail"
    DESCRIPTORS = "descriptors"


# These have no rows to select: they are scrolled.
_PANES = {Page.DETAIL, Page.DESCRIPTORS}


class Row(Struct, frozen=True):
    """A row that can be selected: its name, and the call sites in it if it is a group."""

    name: str
    sites: tuple[str, ...] = ()


class ShownRows(Struct, frozen=True):
    """What keys act on: the rows, how many of them fit, and how far a detail pane can be scrolled."""

    rows: tuple[Row, ...] = ()
    page_rows: int = 1
    scroll_max: int = 0


class View(Struct, frozen=True):
    """What the screen shows.

    `pid` is the open process; `alone` if there is no list of processes behind it. `within` is the group whose
    call sites are shown, `site` the call site in the detail pane; `descriptors`: those that open file
    descriptors are shown. `cursor` is the selected row (None: the
    first), `place` its previous position. `reverse`: the least comes first. `asking` is an action that waits
    for a `y`, `acting` one to begin, each with its process; `reading`: the result of one is shown.
    """

    pid: int | None = None
    alone: bool = False
    sort: SortKey = SortKey.VERDICT
    group: GroupKey = GroupKey.SITE
    within: Row | None = None
    site: str | None = None
    descriptors: bool = False
    cursor: str | None = None
    place: int = 0
    scroll: int = 0
    filter: str = ""
    typing: bool = False
    paused: bool = False
    helping: bool = False
    quitting: bool = False
    reverse: bool = False
    asking: tuple[Action, int] | None = None
    acting: tuple[Action, int] | None = None
    reading: bool = False

    @property
    def page(self) -> Page:
        """What the screen shows."""
        if self.pid is None:
            return Page.PROCESSES
        if self.descriptors:
            return Page.DESCRIPTORS
        if self.site is not None:
            return Page.DETAIL
        return Page.SITES if self.group is GroupKey.SITE or self.within else Page.GROUPS


def selected_index(view: View, rows: Sequence[Row]) -> int:
    """The position of the selected row; 0 without rows."""
    if view.cursor is None or not rows:
        return 0
    found = next((place for place, row in enumerate(rows) if row.name == view.cursor), None)
    return min(view.place, len(rows) - 1) if found is None else found


def pressed(view: View, key: str, shown: ShownRows) -> View:
    """Return the view after a key."""
    if view.typing:
        return _typed(view, key)
    if view.helping:
        return replace(view, helping=False, quitting=key == "q")
    if view.asking:
        return replace(view, asking=None, acting=view.asking if key in ("y", "Y") else None)
    if view.reading:
        return _read(view, key, shown)
    if key in ("q", "?", " ", "/"):
        return {
            "q": replace(view, quitting=True),
            "?": replace(view, helping=True),
            " ": replace(view, paused=not view.paused),
            "/": view if view.page in _PANES else replace(view, typing=True),
        }[key]
    if key in (keys.LEFT, keys.ESCAPE, keys.BACKSPACE):
        return _back(view)
    if key in _ACTIONS:
        return _acted(view, _ACTIONS[key], shown)
    if view.page in _PANES:
        return _scrolled(view, key, shown)
    if key == "o" and view.pid is not None:
        return replace(view, descriptors=True, scroll=0)
    if key in (keys.ENTER, keys.RIGHT):
        return _opened(view, shown)
    if key in _SORTS:
        again = view.sort is _SORTS[key]
        return replace(view, sort=_SORTS[key], reverse=again and not view.reverse)
    if view.page is not Page.PROCESSES and key in _GROUPS:
        # A selection in one grouping does not exist in another.
        return replace(view, group=_GROUPS[key], within=None, cursor=None, place=0)
    return _moved(view, key, shown)


def _acted(view: View, action: Action, shown: ShownRows) -> View:
    if view.pid is not None:
        pid = view.pid
    elif shown.rows:
        pid = int(shown.rows[selected_index(view, shown.rows)].name)
    else:
        return view
    if action in _CONFIRMED:
        return replace(view, asking=(action, pid))
    return replace(view, acting=(action, pid))


def _read(view: View, key: str, shown: ShownRows) -> View:
    """Scroll in the result of an action, or close it."""
    if key == "q" or key in (keys.LEFT, keys.ESCAPE, keys.BACKSPACE, keys.ENTER):
        return replace(view, reading=False, scroll=0, quitting=key == "q")
    return _scrolled(view, key, shown)


def _typed(view: View, key: str) -> View:
    if key == keys.ENTER:
        return replace(view, typing=False)
    if key == keys.ESCAPE:
        return replace(view, typing=False, filter="")
    if key == keys.BACKSPACE:
        return replace(view, filter=view.filter[:-1])
    if len(key) == 1 and len(view.filter) < _FILTER_CHARS:
        return replace(view, filter=view.filter + key, cursor=None, place=0)
    return view


def _back(view: View) -> View:
    if view.page is Page.DESCRIPTORS:
        return replace(view, descriptors=False, scroll=0)
    if view.page is Page.DETAIL:
        return replace(view, site=None, scroll=0)
    if view.filter:
        return replace(view, filter="")
    if view.within:
        return replace(view, within=None, cursor=view.within.name)
    if view.pid is None or view.alone:
        return view
    return replace(view, pid=None, cursor=str(view.pid))


def _opened(view: View, shown: ShownRows) -> View:
    if not shown.rows:
        return view
    place = selected_index(view, shown.rows)
    row = shown.rows[place]
    if view.page is Page.PROCESSES:
        return replace(view, pid=int(row.name), cursor=None, place=0, filter="")
    if view.page is Page.GROUPS:
        return replace(view, within=row, cursor=None, place=0, filter="")
    return replace(view, site=row.name, cursor=row.name, place=place, scroll=0)


def _moved(view: View, key: str, shown: ShownRows) -> View:
    if not shown.rows or (step := _step(key, shown.page_rows, len(shown.rows))) is None:
        return view
    place = min(max(selected_index(view, shown.rows) + step, 0), len(shown.rows) - 1)
    return replace(view, cursor=None if key == keys.HOME else shown.rows[place].name, place=place)


def _scrolled(view: View, key: str, shown: ShownRows) -> View:
    step = _step(key, shown.page_rows, shown.scroll_max)
    return view if step is None else replace(view, scroll=min(max(view.scroll + step, 0), shown.scroll_max))


def _step(key: str, page: int, everything: int) -> int | None:
    steps = {keys.UP: -1, "k": -1, keys.DOWN: 1, "j": 1, keys.HOME: -everything, keys.END: everything}
    return (steps | {keys.PAGE_UP: -page, keys.PAGE_DOWN: page}).get(key)
