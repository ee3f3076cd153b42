"""`bpfleakctl top`: the call sites that leak, or hold or gain the most."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_no_suppressions, add_process, number_between, whole_number_from
from bpfleakd.cli.render.words import json_text
from bpfleakd.errors import NoSuchProcess, NotAttached
from bpfleakd.model.groups import GroupedReport, GroupKey
from bpfleakd.model.report import LeakReport, SortKey

if TYPE_CHECKING:
    from rich.console import Console

HELP = "show call sites with verdicts; live on a terminal"

# Default numbers of rows: printed output is read from the top, a screen can be scrolled.
_PRINTED = 20
_LIVE = 200
_INTERVAL_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser, required=False, what="only this process (default: all)")
    parser.add_argument("--once", action="store_true", help="print once and exit")
    parser.add_argument("--json", action="store_true", help="print JSON once and exit (docs/json.md)")
    parser.add_argument(
        "--limit",
        type=whole_number_from(0),
        metavar="K",
        help=f"call sites or groups per process; 0: all ({_PRINTED}; on a screen {_LIVE})",
    )
    parser.add_argument(
        "--sort",
        choices=[key.value for key in SortKey],
        default="verdict",
        help="what to sort by, largest first (%(default)s: leaks first, then growth)",
    )
    parser.add_argument(
        "--group",
        choices=[key.value for key in GroupKey],
        default="site",
        help="sum call sites that have this in common (%(default)s: do not sum)",
    )
    parser.add_argument(
        "--interval",
        type=number_between(0.1, 3600),
        metavar="S",
        help=f"refresh interval of the screen in seconds ({_INTERVAL_S:g})",
    )
    parser.add_argument(
        "--stacks",
        type=whole_number_from(0),
        default=3,
        metavar="N",
        help="print the stacks of the first N call sites (%(default)s); on a screen, 0 hides the stack pane",
    )
    add_no_suppressions(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the reports: live on a terminal, else once."""
    if arguments.interval and (arguments.once or arguments.json):
        arguments.wrong_usage("--interval is for the screen, not for --once or --json")
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
    if console.is_terminal and not console.is_dumb_terminal and not arguments.once:
        return _live(console, client, arguments)
    width = fitting_width(console)
    reports = _fetch(client, arguments)
    if arguments.group != GroupKey.SITE:
        console.print(groups_view(reports, GroupKey(arguments.group), width=width))
    else:
        console.print(reports_view(reports, width=width, stacks=arguments.stacks))
    return 0


def _live(console: Console, client: DaemonClient, arguments: argparse.Namespace) -> int:
    from bpfleakd.cli.live.session import show_live
    from bpfleakd.cli.live.state import View

    group = GroupKey(arguments.group)
    view = View(
        pid=arguments.pid,
        alone=arguments.pid is not None,
        sort=SortKey(arguments.sort),
        # A screen shows the stack of whatever call site is selected.
        group=GroupKey.SITE if group is GroupKey.STACK else group,
    )
    return show_live(
        console,
        client,
        view,
        interval_s=arguments.interval or _INTERVAL_S,
        limit=_limit(arguments, _LIVE),
        stacks=arguments.stacks > 0,
        suppress=arguments.suppress,
    )


def _limit(arguments: argparse.Namespace, default: int) -> int | None:
    """Return how many rows to ask for, None for all."""
    return default if arguments.limit is None else arguments.limit or None


def _fetch(client: DaemonClient, arguments: argparse.Namespace) -> tuple[Any, ...]:
    """Return leak reports, or grouped ones."""
    limit, sort, by = _limit(arguments, _PRINTED), SortKey(arguments.sort), GroupKey(arguments.group)
    suppress = arguments.suppress

    def ask(pid: int) -> LeakReport | GroupedReport:
        if by is GroupKey.SITE:
            return client.report(pid, limit=limit, sort=sort, suppress=suppress)
        return client.groups(pid, by=by, limit=limit, sort=sort, suppress=suppress)

    if arguments.pid:
        return (ask(arguments.pid),)
    from bpfleakd.cli.render.processes import by_severity

    reports = []
    for traced in by_severity(client.processes()):
        try:
            reports.append(ask(traced.process.pid))
        except (NotAttached, NoSuchProcess):
            continue  # it ended since the list was made
    return tuple(reports)
