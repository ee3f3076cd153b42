"""`bpfleakctl policy`: what bpfleakd does with the processes of this host, and which rule decided."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import SupervisedList
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import json_text
from bpfleakd.errors import NoSuchProcess

HELP = "show the mode of each process, and which rule decided"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser, required=False, what="only this process, or those of this name", one=False)
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print a table of the processes, or JSON."""
    processes = DaemonClient(arguments.socket).supervised()
    if arguments.pid is not None:
        processes = tuple(process for process in processes if arguments.pid in (process.pid, process.comm))
        if not processes:
            raise NoSuchProcess(f"there is no process {arguments.pid}", "`ps -e` lists those that exist")
    if arguments.json:
        print(json_text(SupervisedList(processes)))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import make_console
    from bpfleakd.cli.render.processes import supervised_view

    make_console().print(supervised_view(processes))
    return 0
