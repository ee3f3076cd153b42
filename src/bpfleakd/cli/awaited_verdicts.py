"""Waits for the verdicts on newly attached processes: a leak test in one line.

The exit code is that of the worst verdict, distinct from those of errors (errors.py): 0 if memory keeps its
size, comes and goes, or has stopped growing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.render.words import json_text
from bpfleakd.cli.waiting import waiting
from bpfleakd.errors import BpfleakdError
from bpfleakd.model.process import ProcessState
from bpfleakd.model.report import AwaitedVerdicts, LeakReport, SortKey
from bpfleakd.model.verdict import VERDICTS, Verdict
from bpfleakd.printable import printable
from bpfleakd.units import human_duration

# bpfleakd distinguishes a leak from a filling cache after 50 s; the rest is for starting up.
WAIT_S = 90

EXIT_CODES = {
    Verdict.LEAK: 20,
    Verdict.GROWING: 21,
    Verdict.UNKNOWN: 22,
    Verdict.PLATEAU: 0,
    Verdict.CHURN: 0,
    Verdict.STEADY: 0,
}

_PAUSE_S = 0.5
_SITES = 10
_STACKS = 3


def await_verdicts(
    client: DaemonClient, pids: Sequence[int], wait_s: float, *, as_json: bool, otherwise: int
) -> int:
    """Wait, print the verdicts, return the exit code. `otherwise` is the code of an earlier error, or 0.

    A leak takes precedence over an error, an error over all other verdicts.
    """
    with waiting(f"watching {len(pids)} processes for {human_duration(wait_s)}"):
        _wait(client, pids, wait_s)
    reports = []
    for pid in pids:
        try:
            reports.append(client.report(pid, limit=_SITES, sort=SortKey.VERDICT))
        except BpfleakdError as error:
            # It ended, and so many others ended later that the daemon has dropped its report.
            print(f"bpfleakctl: {pid}: {printable(error.message)}", file=sys.stderr)
            otherwise = otherwise or error.exit_code
    worst = min(map(_verdict, reports), key=VERDICTS.index, default=Verdict.UNKNOWN)
    code = EXIT_CODES[worst]
    if otherwise and worst is not Verdict.LEAK:
        code = otherwise
    if as_json:
        print(json_text(AwaitedVerdicts(worst, code, tuple(reports))))
    else:
        _print(reports, worst, code)
    return code


def _verdict(report: LeakReport) -> Verdict:
    return report.process_verdict.verdict if report.process_verdict else Verdict.UNKNOWN


def _wait(client: DaemonClient, pids: Sequence[int], wait_s: float) -> None:
    """Wait until the time is over, or until none of the processes is traced."""
    deadline_s = time.monotonic() + wait_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        rows = (row.process for row in client.processes())
        if not any(row.pid in pids and row.state is ProcessState.TRACED for row in rows):
            return
        time.sleep(min(_PAUSE_S, left_s))


def _print(reports: Sequence[LeakReport], worst: Verdict, code: int) -> None:
    # rich takes longer to import than all the rest: only where a table is drawn.
    from bpfleakd.cli.render.console import fitting_width, make_console
    from bpfleakd.cli.render.report import reports_view

    if reports:
        console = make_console()
        console.print(reports_view(reports, width=fitting_width(console), stacks=_STACKS))
    print(f"verdict: {worst} (exit code {code})")
