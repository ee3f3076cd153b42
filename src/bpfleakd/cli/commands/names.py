"""`bpfleakctl names`: frames without names, and names on request from a runtime."""

from __future__ import annotations

import argparse

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process
from bpfleakd.cli.render.words import json_text
from bpfleakd.cli.waiting import waiting
from bpfleakd.model.runtimes.requested import NamesReport
from bpfleakd.printable import printable

HELP = "show which frames have no name; ask Java for names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser)
    parser.add_argument(
        "--attach",
        action="store_true",
        help="let the JVM write a perf map (Compiler.perfmap over its attach socket), read it and remove it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Print a line for the frames and one per file, or JSON."""
    client = DaemonClient(arguments.socket)
    if arguments.attach:
        with waiting(f"asking {arguments.pid} for names"):
            report = client.request_names(arguments.pid)
    else:
        report = client.names(arguments.pid)
    print(json_text(report) if arguments.json else "\n".join(_lines(report)))
    return 0


def _lines(report: NamesReport) -> list[str]:
    missing = sum(one.frames for one in report.unnamed)
    runtimes = ", ".join(map(printable, report.runtimes)) or "no language runtime"
    lines = [
        f"{report.pid} {printable(report.comm)}  {runtimes}: "
        f"{report.frames - missing:,} of {report.frames:,} frames have names"
    ]
    lines += [f"  {one.frames:,} without: {printable(one.module or '[jit]')}" for one in report.unnamed]
    if report.requested is not None:
        asked = report.requested
        gained = f"{asked.newly_named:,} more frames have names now"
        if not asked.newly_named:
            gained = "no frame got its name that way"
        lines.append(f"{asked.command} in {asked.took_s:.2f} s: {gained}")
    return [*lines, *map(printable, report.notes)]
