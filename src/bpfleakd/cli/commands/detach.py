"""`bpfleakctl detach PID`: stop tracing a process."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import detached_line
from bpfleakd.cli.waiting import waiting


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("detach", help="stop tracing a process")
    add_process(parser)
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Detach and print one line about it."""
    with waiting(f"detaching from {arguments.pid}"):
        traced = DaemonClient(arguments.socket).detach(arguments.pid)
    print(detached_line(traced))
    return 0
