"""The keys in words: the last line of the screen, and the page that `?` shows."""

from __future__ import annotations

from rich.text import Text

from bpfleakd.cli.live.state import Page, View

__all__ = ["footer", "help_lines"]

_HELP = """\
Keys

  up, down, j, k       select            PgUp, PgDn, Home, End
  Enter, right         open what is selected: a process, a group, a call site
  left, Escape         back

  v  g  l  c           sort by verdict, growth, live bytes, count of blocks
  s  f  m  t           call sites, or functions, modules, threads
  /                    filter by function, module or place; Escape clears it
  space                pause, go on
  Ctrl-L               draw again
  q                    quit

Verdicts

  leak      grows persistently, and what is old stays
  growing   may become one, or is a cache that fills
  plateau   grew and stopped           steady  keeps its size
  churn     comes and goes             unknown  too little was seen

Any key goes back.""".splitlines()

_SELECT = ("q quit", "? help", "enter open")
_LIST = ("/ filter", "space pause", "vglc: {sort}", "sfmt: {group}")
_OF_PAGE = {
    Page.PROCESSES: (*_SELECT, "/ filter", "space pause"),
    Page.SITES: (*_SELECT, *_LIST),
    Page.GROUPS: (*_SELECT, *_LIST),
    Page.DETAIL: ("q quit", "? help", "left back", "up/down scroll", "space pause"),
}


def help_lines() -> list[Text]:
    """Return the page of keys."""
    return [Text(line, "bold" if line and line[0] != " " else "") for line in _HELP]


def footer(view: View, width: int) -> Text:
    """Return the last line: what is typed, or as many keys as there is room for."""
    if view.typing:
        return Text.assemble(("/", "bold"), view.filter, ("_", "blink"))
    line = Text()
    if view.filter:
        line.append(f"/{view.filter}", "bold")
    for words in _OF_PAGE[view.page]:
        hint = words.format(sort=view.sort, group=view.group)
        if line.cell_len + len(hint) + 2 > width:
            break
        line.append("  " * bool(line)).append(hint, "dim")
    return line
