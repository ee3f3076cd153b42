"""`bpfleakctl reports`: stored reports of processes that ended or were detached.

`--show --json` prints the format of `bpfleakctl top --json`, which `bpfleakctl diff` accepts.
"""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import REPORTS_LISTED, REPORTS_LISTED_MAX
from bpfleakd.cli.arguments import add_process, whole_number_between, whole_number_from
from bpfleakd.cli.render.words import json_text
from bpfleakd.errors import NoSuchReport
from bpfleakd.model.stored_report import StoredReport

__all__ = ["add_parser", "run"]

_NEWEST = 0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "reports", help="list and show reports of processes that exited or were detached"
    )
    add_process(parser, required=False, what="only reports of this PID (default: all)", by_name=False)
    parser.add_argument(
        "--show",
        nargs="?",
        const=_NEWEST,
        type=whole_number_from(1),
        metavar="ID",
        help="show this report (default: the newest, with PID that of the process)",
    )
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
        if arguments.limit is not None:
            arguments.wrong_usage("--show names one report: --limit is for the list")
        saved = _chosen(client, arguments.show, arguments.pid)
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


def _chosen(client: DaemonClient, number: int, pid: int | None) -> StoredReport:
    """The report with this number, or the newest; of a process, if `pid` is given. Raises NoSuchReport."""
    lists = "`bpfleakctl reports` lists the stored reports"
    if number == _NEWEST:
        newest = client.reports(pid, limit=1)
        if not newest:
            of_process = "" if pid is None else f" of process {pid}"
            raise NoSuchReport(f"there is no report{of_process}", lists)
        number = newest[0].id
    saved = client.stored_report(number)
    if pid not in (None, saved.kept.pid):
        raise NoSuchReport(f"report {number} is of process {saved.kept.pid}, not {pid}", lists)
    return saved
