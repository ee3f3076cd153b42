"""`bpfleakctl reports`: the reports that the daemon keeps of processes that ended or were detached.

`--show ID --json` prints what `bpfleakctl top --json` printed, so that `bpfleakctl diff` takes it.
"""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import REPORTS_LISTED, REPORTS_LISTED_MAX
from bpfleakd.cli.arguments import add_process, whole_number_between, whole_number_from
from bpfleakd.cli.render.words import json_text

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "reports", help="list and show reports of processes that exited or were detached"
    )
    add_process(parser, required=False, what="only reports of this PID (default: all)")
    parser.add_argument("--show", type=whole_number_from(1), metavar="ID", help="show this report")
    parser.add_argument(
        "--limit",
        type=whole_number_between(1, REPORTS_LISTED_MAX),
        metavar="K",
        help=f"reports to list, newest first ({REPORTS_LISTED})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print a table of reports, or one of them, or JSON."""
    client = DaemonClient(arguments.socket)
    if arguments.show is not None:
        if arguments.pid is not None or arguments.limit is not None:
            arguments.wrong_usage("--show names one report: PID and --limit are for the list")
        saved = client.stored_report(arguments.show)
        if arguments.json:
            print(json_text(saved.report))
            return 0
        from bpfleakd.cli.render.console import fitting_width, make_console
        from bpfleakd.cli.render.report import reports_view

        console = make_console()
        console.print(
            reports_view([saved.report], width=fitting_width(console), stacks=len(saved.report.sites))
        )
        return 0
    reports = client.reports(arguments.pid, limit=arguments.limit or REPORTS_LISTED)
    if arguments.json:
        print(json_text({"reports": reports}))
        return 0
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import make_console
    from bpfleakd.cli.render.saved import kept_reports_view

    make_console().print(kept_reports_view(reports))
    return 0
