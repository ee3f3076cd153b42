"""`bpfleakctl speedscope`: a heap profile for https://www.speedscope.app."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_pid
from bpfleakd.cli.output_file import add_output, write_output

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("speedscope", help="write a heap profile that speedscope opens")
    add_pid(parser, ended=True)
    add_output(parser, "heap.speedscope.json")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write the profile."""
    from bpfleakd.export.speedscope import speedscope_profile

    profile = DaemonClient(arguments.socket).profile(arguments.pid)
    write_output(arguments.output, speedscope_profile(profile).encode())
    return 0
