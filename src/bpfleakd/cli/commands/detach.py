"""`bpfleakctl detach PID`: stop tracing a process."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import detached_line
from bpfleakd.cli.waiting import waiting

HELP = "stop tracing a process"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser)


def run(arguments: argparse.Namespace) -> int:
    """Detach and print one line about it."""
    with waiting(f"detaching from {arguments.pid}"):
        traced = DaemonClient(arguments.socket).detach(arguments.pid)
    print(detached_line(traced))
    return 0
