"""`bpfleakctl report`: the outstanding blocks."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import BLOCKS_LISTED, BLOCKS_LISTED_MAX
from bpfleakd.cli.arguments import add_no_suppressions, add_process, duration_s, site, whole_number_between
from bpfleakd.cli.show import show

HELP = "list the outstanding blocks of a process, by call site"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser, what="a traced process or one that exited, or the only one of that name")
    parser.add_argument("--site", type=site, metavar="S", help="only this call site (default: all)")
    parser.add_argument(
        "--older-than",
        type=duration_s,
        default=0.0,
        metavar="AGE",
        help="only blocks at least this old: 60s, 5m, 1h30m (default: all)",
    )
    parser.add_argument(
        "--limit",
        type=whole_number_between(1, BLOCKS_LISTED_MAX),
        default=BLOCKS_LISTED,
        metavar="K",
        help="blocks to list, oldest first (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    add_no_suppressions(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print sums, stacks and blocks, or JSON."""
    client = DaemonClient(arguments.socket)
    report = client.blocks(
        arguments.pid,
        site=arguments.site,
        older_than_s=arguments.older_than,
        limit=arguments.limit,
        suppress=arguments.suppress,
    )

    def view(width: int | None) -> object:
        from bpfleakd.cli.render.blocks import blocks_view

        return blocks_view(report, width=width)

    return show(report, view, as_json=arguments.json)
