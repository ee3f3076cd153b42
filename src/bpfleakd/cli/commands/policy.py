"""`bpfleakctl policy`: what bpfleakd does with the processes of this host, and which rule decided."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import SupervisedList
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.show import show
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

    def view(_width: int | None) -> object:
        from bpfleakd.cli.render.processes import supervised_view

        return supervised_view(processes)

    return show(SupervisedList(processes), view, as_json=arguments.json)
