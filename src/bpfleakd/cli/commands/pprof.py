"""`bpfleakctl pprof`: a heap profile for `go tool pprof`, Pyroscope and Parca."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_pid
from bpfleakd.cli.output_file import add_output, write_output

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("pprof", help="write a heap profile that `go tool pprof` reads")
    add_pid(parser, ended=True)
    add_output(parser, "heap.pb.gz")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write the profile."""
    from bpfleakd.export.pprof import pprof_profile

    profile = DaemonClient(arguments.socket).profile(arguments.pid)
    write_output(arguments.output, pprof_profile(profile))
    return 0
