"""Programs that do not leak, under load for minutes: `make healthy` writes their verdicts.

All of them run at once, with the children they start. A program fails if the daemon's log ever called it a
leak, or if it is one at the end. The table goes to docs/verdicts.md.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from dataclasses import dataclass
from typing import Any

from bench.clean_programs import CLEAN_PROGRAMS
from bench.clean_tools import LOOPS_DIRECTORY
from bench.documents import rewritten
from bench.peers import NotHere
from bench.tracing import RunningDaemon
from bpfleakd.errors import BpfleakdError
from bpfleakd.model.report import LeakReport
from bpfleakd.model.verdict import Verdict

# Children that come and go, such as a compiler's, belong to the program that started them.
_POLICY = {
    "default": "off",
    "rules": [{"match": {"cmdline": f"*{LOOPS_DIRECTORY}*"}, "mode": "exact", "follow_children": True}],
}
_WARM_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class _Found:
    """The verdicts on a program: `report` of its main process, None if it is not installed."""

    name: str
    report: LeakReport | None
    mode: str = ""


def main() -> int:
    """Run them; returns 1 if a leak was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long they are traced (%(default)s)")
    parser.add_argument("--only", nargs="*", default=[], help="programs whose name has one of these in it")
    arguments = parser.parse_args()
    wanted = [name for name in CLEAN_PROGRAMS if not arguments.only or any(o in name for o in arguments.only)]
    with RunningDaemon(policy=_POLICY) as daemon:
        found, seconds = _traced(daemon, wanted, arguments.seconds)
        leaks = [event for event in daemon.events() if event["event"].endswith(".leak")]
        others = daemon.traced_pids() - {one.report.process.pid for one in found if one.report}
    text = _report(found, leaks, len(others), seconds)
    print(text)
    if not arguments.only:
        rewritten("docs/verdicts.md", "make healthy", text)
    return 1 if leaks or any(_leaks(one.report) for one in found) else 0


def _traced(daemon: RunningDaemon, wanted: list[str], seconds: float) -> tuple[list[_Found], float]:
    """Run the programs side by side; returns the verdicts after this time, and the time itself."""
    with contextlib.ExitStack() as stack:
        running: dict[str, int | None] = {}
        for name in wanted:
            try:
                running[name] = stack.enter_context(CLEAN_PROGRAMS[name]())
            except NotHere:
                running[name] = None
        time.sleep(_WARM_UP_S)
        for pid in running.values():
            if pid is not None:
                with contextlib.suppress(BpfleakdError):
                    # Except those that a rule has traced already, and shells, which allocate, too.
                    daemon.client.attach(pid)
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            time.sleep(_WARM_UP_S)
        found = [
            _Found(name, None if pid is None else daemon.client.report(pid)) for name, pid in running.items()
        ]
        return found, time.monotonic() - began


def _leaks(report: LeakReport | None) -> int:
    return sum(site.verdict is Verdict.LEAK for site in report.sites) if report else 0


def _report(found: list[_Found], leaks: list[dict[str, Any]], others: int, seconds: float) -> str:
    lines = [
        f"Traced for {seconds:.0f} s, all at once, with {others} further processes that they started:",
        "",
        "| program | mode | call sites | allocations | `leak` | `growing` | verdict of the process |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        if one.report is None:
            lines.append(f"| {one.name} | not installed | | | | | |")
            continue
        report = one.report
        growing = sum(site.verdict is Verdict.GROWING for site in report.sites)
        verdict = report.process_verdict
        lines.append(
            f"| {one.name} | {report.process.mode} | {len(report.sites):,} "
            f"| {report.process.allocated_count:,} | {_leaks(report)} | {growing} "
            f"| {verdict.verdict if verdict else ''} |"
        )
    lines += ["", f"Called a leak at any time, of all processes: {len(leaks)}."]
    for event in leaks:
        print(f"false alarm: {event}", file=sys.stderr)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
