"""`bpfleakctl attach PID`: start tracing a process."""

from __future__ import annotations

import argparse
import sys

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import ATTACH_MODES
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import attached_line
from bpfleakd.cli.waiting import waiting
from bpfleakd.model.process import TracingMode
from bpfleakd.printable import printable

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
    parser.add_argument(
        "--enable-profile",
        action="store_true",
        help="turn on the heap profile of a Go program that has none, by writing its sampling rate into the "
        "running process; put back at detach",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask whether to write into the process")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Attach and print one line about it."""
    if arguments.enable_profile and not arguments.yes and not _agrees(arguments.pid):
        print("bpfleakctl: nothing was done: --enable-profile needs a yes, or --yes", file=sys.stderr)
        return 1
    with waiting(f"attaching to {arguments.pid}"):
        traced = DaemonClient(arguments.socket).attach(
            arguments.pid,
            arguments.mode and TracingMode(arguments.mode),
            enable_profile=arguments.enable_profile,
        )
    print(attached_line(traced))
    for note in traced.process.notes:
        print(printable(note))
    return 0


def _agrees(pid: int) -> bool:
    """Ask on the terminal; without one nobody agrees."""
    if not sys.stdin.isatty():
        return False
    answer = input(f"write the rate of the heap profile (runtime.MemProfileRate) into process {pid}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")
