"""`bpfleakctl top`: the call sites that leak, or hold or gain the most."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_no_suppressions, number_between, pid, whole_number_from
from bpfleakd.cli.render.json_text import json_text
from bpfleakd.errors import NoSuchProcess, NotAttached
from bpfleakd.model import GroupedReport, GroupKey, LeakReport, SortKey

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["add_parser", "run"]

# A screen shows the top of a stack; `--once` shows it all.
_LIVE_FRAMES = 12


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("top", help="show the call sites that hold the most memory, live")
    parser.add_argument("--pid", type=pid, metavar="N", help="this process only (default: all)")
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument("--json", action="store_true", help="print JSON once and end (docs/json.md)")
    parser.add_argument(
        "--limit",
        type=whole_number_from(0),
        default=20,
        metavar="K",
        help="call sites, or groups, of a process; 0: all (%(default)s)",
    )
    parser.add_argument(
        "--sort",
        choices=[key.value for key in SortKey],
        default="verdict",
        help="largest first in (%(default)s: leaks, then what grows)",
    )
    parser.add_argument(
        "--group",
        choices=[key.value for key in GroupKey],
        default="site",
        help="put all call sites together by (%(default)s)",
    )
    parser.add_argument(
        "--interval",
        type=number_between(0.1, 3600),
        default=1.0,
        metavar="S",
        help="seconds between two (%(default)s)",
    )
    parser.add_argument(
        "--stacks",
        type=whole_number_from(0),
        default=3,
        metavar="N",
        help="show the stacks of the first N (%(default)s)",
    )
    add_no_suppressions(parser)
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Show the reports: live on a terminal, else once."""
    client = DaemonClient(arguments.socket)
    if arguments.json:
        reports = _fetch(client, arguments)
        print(json_text(reports[0] if arguments.pid else {"processes": reports}))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import fitting_width, make_console
    from bpfleakd.cli.render.groups import groups_view
    from bpfleakd.cli.render.report import reports_view

    console = make_console()
    live = console.is_terminal and not console.is_dumb_terminal and not arguments.once

    def view() -> RenderableType:
        width, max_frames = fitting_width(console), _LIVE_FRAMES if live else None
        reports = _fetch(client, arguments)
        if arguments.group != GroupKey.SITE:
            return groups_view(reports, GroupKey(arguments.group), width=width, max_frames=max_frames)
        return reports_view(reports, width=width, stacks=arguments.stacks, max_frames=max_frames)

    if live:
        _show_live(console, view, arguments.interval)
    console.print(view())
    return 0


def _fetch(client: DaemonClient, arguments: argparse.Namespace) -> tuple[Any, ...]:
    """Return leak reports, or grouped ones."""
    limit, sort, by = arguments.limit or None, SortKey(arguments.sort), GroupKey(arguments.group)
    suppress = arguments.suppress

    def ask(pid: int) -> LeakReport | GroupedReport:
        if by is GroupKey.SITE:
            return client.report(pid, limit=limit, sort=sort, suppress=suppress)
        return client.groups(pid, by=by, limit=limit, sort=sort, suppress=suppress)

    if arguments.pid:
        try:
            return (ask(arguments.pid),)
        except NotAttached as error:
            raise NotAttached(error.message, f"bpfleakctl attach {arguments.pid}") from error
    reports = []
    for traced in client.processes():
        try:
            reports.append(ask(traced.process.pid))
        except (NotAttached, NoSuchProcess):
            continue  # it ended since the list was made
    return tuple(reports)


def _show_live(console: Console, view: Callable[[], RenderableType], interval_s: float) -> None:
    """Draw until interrupted."""
    from rich.live import Live

    with Live(view(), console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval_s)
            live.update(view(), refresh=True)
