"""`bpfleakctl types`: the objects of a managed heap by type; counting them may stop the process.

On request it samples the allocators of surviving objects: with Java's Flight Recorder, which also finds
references to them, or through the inspector of Node.js, which does not know types.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import HEAP_SAMPLE_MAX_S, HEAP_SAMPLE_S
from bpfleakd.cli.arguments import add_process, duration_s
from bpfleakd.cli.show import show
from bpfleakd.cli.waiting import waiting
from bpfleakd.errors import AccessDenied
from bpfleakd.model.runtimes.managed import TypesPrice, TypesReport
from bpfleakd.model.runtimes.requested import HeapSample, HeapSamplePrice
from bpfleakd.model.runtimes.survivors import SurvivorsPrice, SurvivorsReport, longest_s
from bpfleakd.printable import printable

HELP = "show what fills a managed heap: types (.NET, Java, Python) or functions (Java, Node.js)"

# A service does not notice such a stop.
_UNNOTICED_S = 0.3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_process(parser)
    parser.add_argument(
        "--yes", action="store_true", help="do not ask for confirmation; the process is stopped meanwhile"
    )
    parser.add_argument(
        "--no-stop", action="store_true", help="Python: count while the process runs"
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--who",
        action="store_true",
        help="Java: sample the methods that allocate surviving objects, and what refers to these; asks first",
    )
    who.add_argument(
        "--inspector",
        action="store_true",
        help="Node.js: sample the functions that fill the heap, through its inspector; asks first",
    )
    parser.add_argument(
        "--for",
        dest="sample_s",
        type=duration_s,
        default=HEAP_SAMPLE_S,
        metavar="TIME",
        help=f"how long to sample ({HEAP_SAMPLE_S:.0f}s; at most {HEAP_SAMPLE_MAX_S:.0f}s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """State the cost, ask, and print one row per type, or JSON."""
    client = DaemonClient(arguments.socket)
    if arguments.inspector:
        return _sample(client, arguments)
    if arguments.who:
        return _survivors(client, arguments)
    stop = not arguments.no_stop
    if stop and not arguments.yes and not _agreed(client.types_price(arguments.pid)):
        return 1
    with waiting(f"counting the objects of {arguments.pid}"):
        report = client.types(arguments.pid, stop=stop)
    return show(report, partial(_view, report), as_json=arguments.json)


def _sample(client: DaemonClient, arguments: argparse.Namespace) -> int:
    """State the port that is opened, ask, and print one row per function, or JSON."""
    if not arguments.yes and not _confirmed(
        _sample_words(client.heap_sample_price(arguments.pid), arguments)
    ):
        return 1
    with waiting(f"sampling the heap of {arguments.pid}"):
        sample = client.heap_sample(arguments.pid, sample_s=arguments.sample_s)
    if sample.is_left_open:
        print(f"bpfleakctl: the inspector at {sample.address} could not be closed", file=sys.stderr)
    return show(sample, partial(_view, sample), as_json=arguments.json)


def _survivors(client: DaemonClient, arguments: argparse.Namespace) -> int:
    """State the cost, ask, and print one row per type and allocating stack, or JSON."""
    if not arguments.yes and not _confirmed(
        _survivors_words(client.survivors_price(arguments.pid), arguments.sample_s)
    ):
        return 1
    most = f"for up to {longest_s(arguments.sample_s):g} s if it allocates little"
    with waiting(f"sampling the heap of {arguments.pid}, {most}"):
        report = client.survivors(arguments.pid, sample_s=arguments.sample_s)
    return show(report, partial(_view, report), as_json=arguments.json)


def _view(answer: TypesReport | HeapSample | SurvivorsReport, width: int | None) -> object:
    from bpfleakd.cli.render.types import heap_sample_view, survivors_view, types_view

    match answer:
        case TypesReport():
            return types_view(answer, width=width)
        case HeapSample():
            return heap_sample_view(answer, width=width)
        case SurvivorsReport():
            return survivors_view(answer, width=width)


def _survivors_words(price: SurvivorsPrice, sample_s: float) -> str:
    stop = "for an unknown time" if price.stops_s is None else f"for about {price.stops_s:.1f} s"
    return (
        f"process {price.pid} ({printable(price.comm)}) will load its Flight Recorder, which keeps some MB, "
        f"sample allocations for {sample_s:g} s, and then be stopped {stop}, for a search for what holds them"
        f"; if it allocates little, it samples for up to {longest_s(sample_s):g} s"
    )


def _sample_words(price: HeapSamplePrice, arguments: argparse.Namespace) -> str:
    who = f"process {price.pid} ({printable(price.comm)})"
    stop = "for an unknown time" if price.stops_s is None else f"for about {price.stops_s:.2f} s"
    then = f"samples allocations for {arguments.sample_s:g} s, then stops {stop} for a collection"
    if price.is_open:
        return f"the inspector of {who} is open at {price.address} and stays so; it {then}"
    return (
        f"the inspector of {who} will be opened at {price.address} and closed again: meanwhile every user of "
        f"this machine can run code in the process; it {then}"
    )


def _agreed(price: TypesPrice) -> bool:
    """Whether the user accepts the price, if there is one."""
    if price.stops_s is not None and price.stops_s <= _UNNOTICED_S:
        return True
    how_long = "for an unknown time" if price.stops_s is None else f"for about {price.stops_s:.1f} s"
    return _confirmed(
        f"process {price.pid} ({printable(price.comm)}) will be stopped {how_long}, for {price.work}"
    )


def _confirmed(words: str) -> bool:
    """Whether the user agrees. Raises AccessDenied if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise AccessDenied(words, "use --yes to accept this")
    return input(f"{words}. Continue? [y/N] ").strip().lower() in ("y", "yes")
