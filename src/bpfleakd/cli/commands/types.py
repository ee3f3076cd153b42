"""`bpfleakctl types`: the objects of a managed heap by type; counting them may stop the process."""

from __future__ import annotations

import argparse
import sys

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import json_text
from bpfleakd.cli.waiting import waiting
from bpfleakd.errors import AccessDenied
from bpfleakd.model.managed import TypesPrice
from bpfleakd.printable import printable

__all__ = ["add_parser", "run"]


# A service does not notice that.
_UNNOTICED_S = 0.3


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "types", help="count the objects of a managed heap by type (.NET, Java, Python)"
    )
    add_process(parser)
    parser.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation; the process is stopped meanwhile"
    )
    parser.add_argument(
        "--no-stop", action="store_true", help="count while it runs, if the runtime supports it (Python)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Say what it costs, ask, and print a row a type, or JSON."""
    client = DaemonClient(arguments.socket)
    stop = not arguments.no_stop
    if stop and not arguments.yes and not _agreed(client.types_price(arguments.pid)):
        return 1
    with waiting(f"counting the objects of {arguments.pid}"):
        report = client.types(arguments.pid, stop=stop)
    if arguments.json:
        print(json_text(report))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import fitting_width, make_console
    from bpfleakd.cli.render.types import types_view

    console = make_console()
    console.print(types_view(report, width=fitting_width(console)))
    return 0


def _agreed(price: TypesPrice) -> bool:
    """Whether the user accepts the price, if there is one. Raises AccessDenied if there is no terminal to
    ask on.
    """
    if price.stops_s is not None and price.stops_s <= _UNNOTICED_S:
        return True
    how_long = "for an unknown time" if price.stops_s is None else f"for about {price.stops_s:.1f} s"
    words = f"process {price.pid} ({printable(price.comm)}) will be stopped {how_long}, for {price.work}"
    if not sys.stdin.isatty():
        raise AccessDenied(words, "use --yes to accept this")
    return input(f"{words}. Continue? [y/N] ").strip().lower() in ("y", "yes")
