"""`bpfleakctl export`: outstanding memory as a flame graph or for a profile viewer."""

from __future__ import annotations

import argparse
import sys
from enum import StrEnum
from pathlib import Path

from bpfleakd.api.client import DaemonClient
from bpfleakd.cli.arguments import add_process, add_value, one_of
from bpfleakd.cli.output_file import STANDARD_OUTPUT, add_output, write_output
from bpfleakd.cli.saved_report import read_report
from bpfleakd.errors import OutputFailed
from bpfleakd.export.stack_values import StackValue
from bpfleakd.model.report import HeapProfile, LeakReport
from bpfleakd.printable import printable

HELP = "write a flame graph (HTML, SVG), or a heap profile for pprof, speedscope and others"


class Format(StrEnum):
    """File formats."""

    HTML = "html"
    SVG = "svg"
    PPROF = "pprof"
    SPEEDSCOPE = "speedscope"
    COLLAPSED = "collapsed"


_BY_ENDING = {
    ".html": Format.HTML,
    ".svg": Format.SVG,
    ".pb.gz": Format.PPROF,
    ".speedscope.json": Format.SPEEDSCOPE,
    ".txt": Format.COLLAPSED,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser, what="a traced process or one that exited, or the only one of that name")
    parser.add_argument(
        "--format",
        type=one_of(Format),
        choices=list(Format),
        metavar="FORMAT",
        help=f"{', '.join(Format)} (default: by the file name: {', '.join(_BY_ENDING)})",
    )
    add_value(parser, "the value to draw or sum; pprof and speedscope contain all")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="html, svg: compare with a report saved by `top --json --limit 0`; red grew, blue shrank",
    )
    add_output(parser, "leak.html, leak.svg or heap.pb.gz")


def run(arguments: argparse.Namespace) -> int:
    """Write the file."""
    kind = arguments.format or _format_of(arguments)
    if arguments.against and kind not in (Format.HTML, Format.SVG):
        arguments.wrong_usage(f"--against compares flame graphs (html, svg), not {kind}")
    if arguments.value and kind in (Format.PPROF, Format.SPEEDSCOPE):
        arguments.wrong_usage(f"--value makes no sense for {kind}, which contains all values")
    if arguments.output == STANDARD_OUTPUT and kind is not Format.COLLAPSED and sys.stdout.isatty():
        raise OutputFailed(
            f"a terminal cannot show {kind}", f"use -o leak{_ending(kind)}, or --format {Format.COLLAPSED}"
        )
    baseline = read_report(arguments.against) if arguments.against else None
    profile = DaemonClient(arguments.socket).profile(arguments.pid)
    write_output(
        arguments.output, _content(kind, profile, arguments.value or StackValue.LIVE_BYTES, baseline)
    )
    return 0


def _format_of(arguments: argparse.Namespace) -> Format:
    """The format according to the file name; HTML for standard output."""
    name = arguments.output
    if name == STANDARD_OUTPUT:
        return Format.HTML
    for ending, kind in _BY_ENDING.items():
        if name.endswith(ending):
            return kind
    arguments.wrong_usage(
        f"{printable(name)} names no format: use {', '.join(_BY_ENDING)}, or --format {', '.join(Format)}"
    )
    raise AssertionError("wrong_usage exits")


def _ending(kind: Format) -> str:
    return next(ending for ending, one in _BY_ENDING.items() if one is kind)


def _content(kind: Format, profile: HeapProfile, value: StackValue, baseline: LeakReport | None) -> bytes:
    match kind:
        case Format.HTML | Format.SVG:
            from bpfleakd.export.flamegraph import flamegraph_html
            from bpfleakd.export.flamegraph_picture import flamegraph_svg

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
