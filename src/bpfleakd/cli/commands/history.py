"""`bpfleakctl history`: saves the input of the verdicts on a process."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process, whole_number_from
from bpfleakd.cli.output_file import add_output, write_output
from bpfleakd.cli.render.words import json_text

HELP = "save the data behind the verdicts, for `analyze`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser)
    parser.add_argument(
        "--limit",
        type=whole_number_from(0),
        default=200,
        metavar="K",
        help="number of call sites, those that leak or grow first; 0: all (%(default)s)",
    )
    add_output(parser, "history.json")


def run(arguments: argparse.Namespace) -> int:
    """Write JSON (docs/json.md)."""
    history = DaemonClient(arguments.socket).history(arguments.pid, limit=arguments.limit or None)
    write_output(arguments.output, f"{json_text(history)}\n".encode())
    return 0
