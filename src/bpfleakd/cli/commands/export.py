"""`bpfleakctl export`: what is outstanding, as a flame graph or for a profile viewer."""

from __future__ import annotations

import argparse
from enum import StrEnum
from pathlib import Path

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_pid, add_value
from bpfleakd.cli.output_file import add_output, write_output
from bpfleakd.cli.saved_report import read_report
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.profile import HeapProfile
from bpfleakd.model.report import LeakReport

__all__ = ["Format", "add_parser", "run"]


class Format(StrEnum):
    """What is written."""

    HTML = "html"
    SVG = "svg"
    PPROF = "pprof"
    SPEEDSCOPE = "speedscope"
    COLLAPSED = "collapsed"


# By the end of a file's name; a flame graph for all others.
_BY_ENDING = {
    ".svg": Format.SVG,
    ".pb.gz": Format.PPROF,
    ".speedscope.json": Format.SPEEDSCOPE,
    ".txt": Format.COLLAPSED,
}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Add the command."""
    parser = commands.add_parser(
        "export", help="write a flame graph (HTML, SVG), or a heap profile for pprof, speedscope and others"
    )
    add_pid(parser, ended=True)
    parser.add_argument(
        "--format",
        type=Format,
        choices=list(Format),
        metavar="FORMAT",
        help=f"{', '.join(Format)} (default: as the file ends, {', '.join(_BY_ENDING)}, else html)",
    )
    add_value(parser, "what is drawn or added up; pprof and speedscope have all")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="html, svg: compare with a report saved by `top --json --limit 0`; red grew, blue shrank",
    )
    add_output(parser, "leak.html, leak.svg or heap.pb.gz")
    parser.set_defaults(run=run, wrong_usage=parser.error)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Write the file."""
    endings = (kind for ending, kind in _BY_ENDING.items() if arguments.output.endswith(ending))
    kind = arguments.format or next(endings, Format.HTML)
    if arguments.against and kind not in (Format.HTML, Format.SVG):
        arguments.wrong_usage(f"--against compares flame graphs (html, svg), not {kind}")
    baseline = read_report(arguments.against) if arguments.against else None
    profile = DaemonClient(arguments.socket).profile(arguments.pid)
    write_output(arguments.output, _content(kind, profile, arguments.value, baseline))
    return 0


def _content(kind: Format, profile: HeapProfile, value: StackValue, baseline: LeakReport | None) -> bytes:
    match kind:
        case Format.HTML | Format.SVG:
            from bpfleakd.export.flamegraph import flamegraph_html, flamegraph_svg

            draw = flamegraph_svg if kind is Format.SVG else flamegraph_html
            return draw(profile.report, value, baseline).encode()
        case Format.PPROF:
            from bpfleakd.export.pprof import pprof_profile

            return pprof_profile(profile)
        case Format.SPEEDSCOPE:
            from bpfleakd.export.speedscope import speedscope_profile

            return speedscope_profile(profile).encode()
        case Format.COLLAPSED:
            from bpfleakd.export.collapsed import collapsed_stacks

            return collapsed_stacks(profile.report, value).encode()
