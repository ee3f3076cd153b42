"""`bpfleakctl diff`: what changed between two times of a process, or between two saved reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from bpfleakd.analysis.diff import compared
from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import duration_s, pid, whole_number_from
from bpfleakd.cli.saved_report import read_report
from bpfleakd.cli.show import show
from bpfleakd.model.difference import DiffReport
from bpfleakd.model.report import LeakReport, SortKey

HELP = "compare two times, or two reports: call sites that are new, grew, shrank or are gone"

_HOW = "save one with: bpfleakctl top --pid N --json --limit 0 > FILE"
_START, _NOW = "start", "now"
# Valid combinations of BEFORE, AFTER and --pid: two times, two reports, a report and a process.
_COMPARABLE = ([False, False, True], [True, True, False], [True, False, True])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s PID [--from T] [--to T]\n   or: %(prog)s BEFORE AFTER\n   or: %(prog)s BEFORE --pid N"
    )
    parser.add_argument(
        "before",
        nargs="?",
        metavar="BEFORE",
        help=f"a report: its number in `reports`, or a file ({_HOW}); alone, a PID",
    )
    parser.add_argument(
        "after",
        nargs="?",
        metavar="AFTER",
        help="a later report, or one of another process of the same program",
    )
    parser.add_argument("--pid", type=pid, metavar="N", help="a traced process; with BEFORE, as it is now")
    parser.add_argument(
        "--from",
        dest="from_ago_s",
        type=_ago_s,
        metavar="T",
        help="first time: an age (10m, 90s, 1h30m), now, or start (of tracing; the default)",
    )
    parser.add_argument("--to", dest="to_ago_s", type=_ago_s, metavar="T", help="second time (default: now)")
    parser.add_argument(
        "--limit",
        type=whole_number_from(0),
        default=20,
        metavar="K",
        help="call sites to show; 0: all (%(default)s)",
    )
    parser.add_argument(
        "--stacks",
        type=whole_number_from(0),
        default=3,
        metavar="N",
        help="show the stacks of the first N (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print the call sites that changed, largest gains first; two files need no daemon."""
    report = _compared(arguments)

    def view(width: int | None) -> object:
        from bpfleakd.cli.render.diff import diff_view

        return diff_view(report, width=width, limit=arguments.limit or None, stacks=arguments.stacks)

    return show(report, view, as_json=arguments.json)


def _compared(arguments: argparse.Namespace) -> DiffReport:
    client = DaemonClient(arguments.socket)
    if arguments.before and arguments.after is None and arguments.pid is None:
        try:
            arguments.pid, arguments.before = pid(arguments.before), None
        except argparse.ArgumentTypeError as error:
            arguments.wrong_usage(f"{error}; to compare reports, name two")
    times = arguments.from_ago_s, arguments.to_ago_s
    if arguments.before is not None and times != (None, None):
        arguments.wrong_usage("--from and --to need a process, not saved reports")
    given = [one is not None for one in (arguments.before, arguments.after, arguments.pid)]
    if given not in _COMPARABLE:
        arguments.wrong_usage("compare two reports, or a report with --pid, or two times of --pid")
    if arguments.before is None:
        from_ago_s, to_ago_s = times
        if to_ago_s == _START:
            arguments.wrong_usage("--to start: there is nothing earlier to compare with")
        return client.compare(
            arguments.pid,
            from_ago_s=None if from_ago_s in (None, _START) else from_ago_s,
            to_ago_s=to_ago_s or 0.0,
        )
    before, name = _saved(client, arguments.before)
    if arguments.after is not None:
        after, later_name = _saved(client, arguments.after)
    else:
        after, later_name = client.report(arguments.pid, sort=SortKey.LIVE), _NOW
    return compared(before, after, (name, later_name))


def _saved(client: DaemonClient, text: str) -> tuple[LeakReport, str]:
    """A report stored by the daemon, if `text` is a number, else one in a file; with its description."""
    if text.isascii() and text.isdigit():
        return client.stored_report(int(text)).report, f"report {text}"
    return read_report(Path(text)), text


def _ago_s(text: str) -> float | str:
    """The argparse type of a time: seconds ago, or `start`."""
    if text == _START:
        return text
    return 0.0 if text == _NOW else duration_s(text)
