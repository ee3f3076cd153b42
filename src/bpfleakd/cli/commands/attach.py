"""`bpfleakctl attach PID`: start tracing a process."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import ATTACH_MODES
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import attached_line
from bpfleakd.cli.waiting import waiting
from bpfleakd.model.process import TracingMode

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("attach", help="start tracing a process")
    add_process(parser, what="a running process")
    parser.add_argument(
        "--mode",
        choices=[mode.value for mode in ATTACH_MODES],
        help="exact: record every block; sampled: record some and estimate the rest; "
        "auto: exact until that exceeds the budget; inside: what a sampler inside the program announces "
        "(inside if there is one, else exact)",
    )
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Attach and print one line about it."""
    with waiting(f"attaching to {arguments.pid}"):
        traced = DaemonClient(arguments.socket).attach(
            arguments.pid, arguments.mode and TracingMode(arguments.mode)
        )
    print(attached_line(traced))
    return 0
