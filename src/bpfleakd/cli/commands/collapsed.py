"""`bpfleakctl collapsed`: stacks a line each, for flame graph tools."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_pid, add_value
from bpfleakd.cli.output_file import add_output, write_output

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("collapsed", help="write the stacks a line each, for flame graph tools")
    add_pid(parser, ended=True)
    add_value(parser, "what is added up")
    add_output(parser, "stacks.txt")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write the stacks."""
    from bpfleakd.export.collapsed import collapsed_stacks

    profile = DaemonClient(arguments.socket).profile(arguments.pid)
    write_output(arguments.output, collapsed_stacks(profile.report, arguments.value).encode())
    return 0
