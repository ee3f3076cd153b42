"""`bpfleakctl collapsed`: stacks a line each, for flame graph tools."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import pid
from bpfleakd.cli.output_file import add_output, write_output
from bpfleakd.export.stack_values import StackValue

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("collapsed", help="write the stacks a line each, for flame graph tools")
    parser.add_argument(
        "--pid", type=pid, required=True, metavar="N", help="a traced process, or one that ended"
    )
    parser.add_argument(
        "--value",
        type=StackValue,
        choices=list(StackValue),
        default=StackValue.LIVE_BYTES,
        metavar="VALUE",
        help=f"what is added up: {', '.join(StackValue)} (%(default)s)",
    )
    add_output(parser, "stacks.txt")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write the stacks."""
    from bpfleakd.export.collapsed import collapsed_stacks

    profile = DaemonClient(arguments.socket).profile(arguments.pid)
    write_output(arguments.output, collapsed_stacks(profile.report, arguments.value).encode())
    return 0
