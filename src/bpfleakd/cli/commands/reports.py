"""`bpfleakctl reports`: stored reports of processes that ended or were detached.

`--show --json` prints the format of `bpfleakctl top --json`, which `bpfleakctl diff` accepts.
"""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import REPORTS_LISTED, REPORTS_LISTED_MAX
from bpfleakd.cli.arguments import add_process, whole_number_between, whole_number_from
from bpfleakd.cli.show import show
from bpfleakd.errors import NoSuchReport
from bpfleakd.model.report import StoredReport, StoredReportEntry

HELP = "list and show reports of processes that exited or were detached"

_NEWEST = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser, required=False, what="only reports of it, or of all with this name", one=False)
    parser.add_argument(
        "--show",
        nargs="?",
        const=_NEWEST,
        type=whole_number_from(1),
        metavar="ID",
        help="show this report (default: the newest, with a process its newest)",
    )
    parser.add_argument(
        "--limit",
        type=whole_number_between(1, REPORTS_LISTED_MAX),
        metavar="K",
        help=f"reports to list, newest first ({REPORTS_LISTED})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print a table of reports, or one of them, or JSON."""
    client = DaemonClient(arguments.socket)
    if arguments.show is not None:
        if arguments.limit is not None:
            arguments.wrong_usage("--show names one report: --limit is for the list")
        report = _chosen(client, arguments.show, arguments.pid).report

        def report_view(width: int | None) -> object:
            from bpfleakd.cli.render.report import reports_view

            return reports_view([report], width=width, stacks=len(report.sites))

        return show(report, report_view, as_json=arguments.json)
    reports = _listed(client, arguments.pid, arguments.limit or REPORTS_LISTED)

    def list_view(_width: int | None) -> object:
        from bpfleakd.cli.render.saved import kept_reports_view

        return kept_reports_view(reports)

    return show({"reports": reports}, list_view, as_json=arguments.json)


def _listed(client: DaemonClient, process: int | str | None, limit: int) -> tuple[StoredReportEntry, ...]:
    """The newest reports: of a PID, of all processes with a name, or of all."""
    if not isinstance(process, str):
        return client.reports(process, limit=limit)
    stored = client.reports(limit=REPORTS_LISTED_MAX)
    return tuple(entry for entry in stored if process in _names(entry))[:limit]


def _names(entry: StoredReportEntry) -> tuple[int | str | None, ...]:
    """What --show and the list take for its process; None is any."""
    return None, entry.pid, entry.comm, entry.exe.rpartition("/")[2]


def _chosen(client: DaemonClient, number: int, process: int | str | None) -> StoredReport:
    """The report with this number, or the newest; of `process`, if one is named. Raises NoSuchReport."""
    lists = "`bpfleakctl reports` lists the stored reports"
    if number == _NEWEST:
        newest = _listed(client, process, 1)
        if not newest:
            of_process = "" if process is None else f" of process {process}"
            raise NoSuchReport(f"there is no report{of_process}", lists)
        number = newest[0].id
    saved = client.stored_report(number)
    if process not in _names(saved.kept):
        raise NoSuchReport(f"report {number} is of process {saved.kept.pid}, not {process}", lists)
    return saved
