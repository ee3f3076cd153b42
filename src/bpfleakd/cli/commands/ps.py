"""`bpfleakctl ps`: the traced processes, and with --all those whose memory is watched."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import ProcessList
from bpfleakd.cli.render.words import json_text

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("ps", help="list the traced processes")
    parser.add_argument(
        "-a", "--all", action="store_true", help="and those whose memory is watched, the growing ones first"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print tables of the processes, or JSON."""
    client = DaemonClient(arguments.socket)
    processes = client.processes()
    watched = client.watched() if arguments.all else ()
    if arguments.json:
        everything = {"processes": processes, "watched": watched}
        print(json_text(everything if arguments.all else ProcessList(processes)))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import fitting_width, make_console
    from bpfleakd.cli.render.processes import processes_view, watched_view

    console = make_console()
    console.print(processes_view(processes, width=fitting_width(console)))
    if arguments.all:
        console.print()
        console.print(watched_view(watched))
    return 0
