"""`bpfleakctl maps --pid N`: the memory of a process by use, and what explains it."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.show import show

HELP = "show what a process' memory consists of"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print tables of uses, of shares and of modules, or JSON."""
    report = DaemonClient(arguments.socket).address_space(arguments.pid)

    def view(width: int | None) -> object:
        from bpfleakd.cli.render.maps import maps_view

        return maps_view(report, width=width)

    return show(report, view, as_json=arguments.json)
