"""`bpfleakctl flamegraph`: a flame graph of what is outstanding, in one file."""

from __future__ import annotations

import argparse
from pathlib import Path

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_pid, add_value
from bpfleakd.cli.output_file import add_output, write_output
from bpfleakd.cli.saved_report import read_report

__all__ = ["add_parser", "run"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser("flamegraph", help="draw what is outstanding as a flame graph (HTML or SVG)")
    add_pid(parser, ended=True)
    add_value(parser, "what the widths are")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="compare with a report saved by `top --json --limit 0`: red is what grew, blue what shrank",
    )
    add_output(parser, "leak.html or leak.svg")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write a picture if the file's name ends in .svg, otherwise a page."""
    from bpfleakd.export.flamegraph import flamegraph_html, flamegraph_svg

    baseline = read_report(arguments.against) if arguments.against else None
    report = DaemonClient(arguments.socket).report(arguments.pid)
    draw = flamegraph_svg if arguments.output.endswith(".svg") else flamegraph_html
    write_output(arguments.output, draw(report, arguments.value, baseline).encode())
    return 0
