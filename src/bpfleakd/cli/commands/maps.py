"""`bpfleakctl maps --pid N`: the memory of a process by use, and what explains it."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import json_text

HELP = "show what a process' memory consists of"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print tables of uses, of shares and of modules, or JSON."""
    report = DaemonClient(arguments.socket).address_space(arguments.pid)
    if arguments.json:
        print(json_text(report))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import fitting_width, make_console
    from bpfleakd.cli.render.maps import maps_view

    console = make_console()
    console.print(maps_view(report, width=fitting_width(console)))
    return 0
