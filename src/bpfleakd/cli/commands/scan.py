"""`bpfleakctl scan`: which outstanding blocks are lost, because nothing points to them."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import BLOCKS_LISTED, BLOCKS_LISTED_MAX, STOP_LIMIT_MAX_S, STOP_LIMIT_S
from bpfleakd.cli.arguments import add_process, duration_s, number_between, whole_number_between
from bpfleakd.cli.show import show
from bpfleakd.cli.waiting import waiting

HELP = "find lost blocks: those nothing points to any more"

_OLDER_THAN_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser)
    parser.add_argument(
        "--older-than",
        type=duration_s,
        default=_OLDER_THAN_S,
        metavar="AGE",
        help="judge only blocks at least this old: 0, 5m, 1h30m (60s)",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--no-stop", action="store_true", help="read the memory while the process runs (less certain)"
    )
    how.add_argument(
        "--stop-limit",
        type=number_between(1, STOP_LIMIT_MAX_S * 1000),
        default=STOP_LIMIT_S * 1000,
        metavar="MS",
        help="stop the process for at most this long; read the rest while it runs (%(default)g)",
    )
    parser.add_argument("--blocks", action="store_true", help="list the lost blocks")
    parser.add_argument(
        "--limit",
        type=whole_number_between(1, BLOCKS_LISTED_MAX),
        metavar="K",
        help=f"with --blocks: blocks to list, oldest first ({BLOCKS_LISTED})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print sums by kind, the sites that lose memory with their stacks, and their blocks; or JSON."""
    if arguments.limit and not arguments.blocks:
        arguments.wrong_usage("--limit needs --blocks")
    client = DaemonClient(arguments.socket)
    with waiting(f"reading the memory of {arguments.pid}"):
        report = client.scan(
            arguments.pid,
            older_than_s=arguments.older_than,
            stop=not arguments.no_stop,
            stop_limit_s=arguments.stop_limit / 1000,
            limit=(arguments.limit or BLOCKS_LISTED) if arguments.blocks else 0,
        )

    def view(width: int | None) -> object:
        from bpfleakd.cli.render.scan import scan_view

        return scan_view(report, width=width)

    return show(report, view, as_json=arguments.json)
