"""`bpfleakctl diff`: what changed between two saved reports, of one process or of two."""

from __future__ import annotations

import argparse
from pathlib import Path

from bpfleakd.analysis.diff import compared
from bpfleakd.cli.arguments import whole_number_from
from bpfleakd.cli.render.json_text import json_text
from bpfleakd.cli.saved_report import read_report

__all__ = ["add_parser", "run"]

_HOW = "save one with: bpfleakctl top --pid N --json --limit 0 > FILE"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "diff", help="compare two saved reports: call sites that are new, grew, shrank or are gone"
    )
    parser.add_argument("before", type=Path, metavar="BEFORE", help=f"a leak report; {_HOW}")
    parser.add_argument("after", type=Path, metavar="AFTER", help="a later one, or one of another process")
    parser.add_argument(
        "--limit",
        type=whole_number_from(0),
        default=20,
        metavar="K",
        help="call sites to show; 0: all (%(default)s)",
    )
    parser.add_argument(
        "--stacks",
        type=whole_number_from(0),
        default=3,
        metavar="N",
        help="show the stacks of the first N (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, of all (docs/json.md)")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print the call sites that changed, what gained most first; no daemon is needed."""
    report = compared(read_report(arguments.before), read_report(arguments.after))
    if arguments.json:
        print(json_text(report))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import fitting_width, make_console
    from bpfleakd.cli.render.diff import diff_view

    console = make_console()
    view = diff_view(
        report, width=fitting_width(console), limit=arguments.limit or None, stacks=arguments.stacks
    )
    console.print(view)
    return 0
