"""`bpfleakctl ps`: the traced processes."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import ProcessList
from bpfleakd.cli.render.json_text import json_text

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("ps", help="list the traced processes")
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print a table of the traced processes, or JSON."""
    processes = DaemonClient(arguments.socket).processes()
    if arguments.json:
        print(json_text(ProcessList(processes)))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import make_console
    from bpfleakd.cli.render.processes import processes_view

    make_console().print(processes_view(processes))
    return 0
