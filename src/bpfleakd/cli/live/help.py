"""The keys in words: the last line of the screen, and the page that `?` shows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.text import Text

from bpfleakd.cli.live.state import Action, Page, View

_KEYS = (
    ("up, down, j, k", "select; also PgUp, PgDn, Home, End"),
    ("Enter, right", "open the selected process, group or call site"),
    ("left, Escape", "back"),
    ("v  g  l  c", "sort by verdict, growth, live bytes, count; again: reverse"),
    ("s  f  m  t", "group by call site, function, module, thread"),
    ("/", "filter by name, module or place; Escape clears it"),
    ("space  Ctrl-L  q", "pause or continue; redraw; quit"),
    ("a  d", "attach to a watched process; detach (asks first)"),
    ("x", "scan for lost blocks: stops the process for 0.2 s at most"),
    ("y", "count managed objects by type: stops it (asks first)"),
    ("o  e", "list open files by call site; save a flame graph here"),
)
_VERDICTS = (
    ("leak", "grows persistently, and old blocks stay"),
    ("growing", "may become a leak, or is a cache that fills"),
    ("plateau", "grew and stopped"),
    ("steady", "keeps its size"),
    ("churn", "comes and goes"),
    ("unknown", "observed too briefly"),
)
_TERM_WIDTH = 17

_SELECT = ("q quit", "? help", "enter open")
_SORT = "vglc: {sort}{order}"
_LIST = ("/ filter", "space pause", _SORT, "sfmt: {group}", "o open files", "d detach", "x scan", "e export")
_PANE = ("q quit", "? help", "left back", "up/down scroll", "space pause")
_OF_PAGE = {
    Page.PROCESSES: (*_SELECT, "/ filter", "space pause", _SORT, "a attach", "d detach"),
    Page.SITES: (*_SELECT, *_LIST),
    Page.GROUPS: (*_SELECT, *_LIST),
    Page.DETAIL: _PANE,
    Page.DESCRIPTORS: _PANE,
}


def help_lines(width: int) -> list[Text]:
    """Return the page of keys."""
    return [
        Text("Keys", "bold"),
        *_explained(_KEYS, width),
        Text(),
        Text("Verdicts", "bold"),
        *_explained(_VERDICTS, width),
        Text(),
        Text("Any key goes back.", "bold"),
    ]


def _explained(terms: Sequence[tuple[str, str]], width: int) -> list[Text]:
    indent = " " * (_TERM_WIDTH + 2)
    room = max(width, 2 * len(indent))
    lines = (
        textwrap.wrap(f"  {term:{_TERM_WIDTH}}{meaning}", room, subsequent_indent=indent)
        for term, meaning in terms
    )
    return [Text(line) for wrapped in lines for line in wrapped]


_QUESTIONS = {
    Action.DETACH: "stop tracing {}? y/N",
    Action.TYPES: "stop process {} to count its objects? y/N",
}


def footer(view: View, width: int, position: str = "") -> Text:
    """Return the last line: a question, what is typed, or as many keys as there is room for.

    `position` stands at its right end.
    """
    line = _footer(view, width - len(position) - 2 * bool(position))
    if position:
        line.append(" " * max(width - line.cell_len - len(position), 0)).append(position)
    return line


def _footer(view: View, width: int) -> Text:
    if view.asking:
        action, pid = view.asking
        return Text(_QUESTIONS[action].format(pid), "bold")
    if view.reading:
        return Text("q quit  left back  up/down scroll", "dim")
    if view.typing:
        return Text.assemble(("/", "bold"), view.filter, ("_", "blink"))
    line = Text()
    if view.filter:
        line.append(f"/{view.filter}", "bold")
    for words in _OF_PAGE[view.page]:
        order = " reversed" if view.reverse else ""
        hint = words.format(sort=view.sort, order=order, group=view.group)
        if line.cell_len + len(hint) + 2 > width:
            break
        line.append("  " * bool(line)).append(hint, "dim")
    return line
