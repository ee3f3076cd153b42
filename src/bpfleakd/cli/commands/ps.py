"""`bpfleakctl ps`: the traced processes, and with --all those whose memory is watched."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import ProcessList
from bpfleakd.cli.arguments import add_process, number_between
from bpfleakd.cli.render.words import json_text
from bpfleakd.errors import NotAttached
from bpfleakd.model.process import ProcessRow
from bpfleakd.model.watching import WatchedProcess

if TYPE_CHECKING:
    from rich.console import Console

HELP = "list the traced processes, those that leak first"

_WATCH_S = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser, required=False, what="only this process")
    parser.add_argument(
        "-a", "--all", action="store_true", help="also list watched processes, the growing ones first"
    )
    parser.add_argument(
        "-o", "--output", choices=["wide"], help="wide: also peak, rule, unit or container, and executable"
    )
    parser.add_argument("--no-headers", action="store_true", help="omit the line of titles")
    parser.add_argument(
        "--watch",
        type=number_between(0.1, 3600),
        nargs="?",
        const=_WATCH_S,
        metavar="S",
        help=f"print it again every S seconds ({_WATCH_S:g}), until Ctrl-C",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print tables of the processes, or JSON."""
    if arguments.json and (arguments.watch or arguments.output or arguments.no_headers):
        arguments.wrong_usage("--watch, --output and --no-headers are for the table, not for --json")
    client = DaemonClient(arguments.socket)
    if arguments.json:
        traced, watched = _rows(client, arguments)
        everything = {"processes": traced, "watched": watched}
        print(json_text(everything if arguments.all else ProcessList(traced)))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import make_console

    console = make_console(bounded=arguments.output != "wide")
    _print(console, client, arguments)
    while arguments.watch:
        time.sleep(arguments.watch)
        console.clear()
        _print(console, client, arguments)
    return 0


def _print(console: Console, client: DaemonClient, arguments: argparse.Namespace) -> None:
    from bpfleakd.cli.render.console import fitting_width
    from bpfleakd.cli.render.processes import by_severity, missed_view, processes_view, watched_view

    headers = not arguments.no_headers
    wide = arguments.output == "wide"
    traced, watched = _rows(client, arguments)
    width = fitting_width(console)
    console.print(processes_view(by_severity(traced), width=width, wide=wide, headers=headers))
    if arguments.all:
        console.print()
        console.print(watched_view(watched, headers=headers))
        if missed := client.stats().process_events.missed_total:
            console.print(missed_view(missed))


def _rows(
    client: DaemonClient, arguments: argparse.Namespace
) -> tuple[tuple[ProcessRow, ...], tuple[WatchedProcess, ...]]:
    """The traced processes, and with --all the watched ones; of one process, if one is named."""
    traced, watched = client.processes(), client.watched() if arguments.all else ()
    if arguments.pid is None:
        return traced, watched
    traced = tuple(row for row in traced if row.process.pid == arguments.pid)
    watched = tuple(row for row in watched if row.pid == arguments.pid)
    if not traced and not watched:
        raise NotAttached(
            f"process {arguments.pid} is not being traced", f"bpfleakctl attach {arguments.pid}"
        )
    return traced, watched
