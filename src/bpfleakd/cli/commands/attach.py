"""`bpfleakctl attach PID`: start tracing a process, or all that match; on request wait for the verdict."""

from __future__ import annotations

import argparse
import sys

from bpfleakd.api.client import DaemonClient
from bpfleakd.api.service import ATTACH_MODES
from bpfleakd.cli.arguments import StoreProcess, duration_s, pid, pid_or_name
from bpfleakd.cli.awaited_verdicts import WAIT_S, await_verdicts
from bpfleakd.cli.render.words import attached_line
from bpfleakd.cli.waiting import waiting
from bpfleakd.errors import AlreadyAttached, BpfleakdError, NoSuchProcess
from bpfleakd.model.process import ProcessRow, ProcessSelection, TracingMode
from bpfleakd.printable import printable

HELP = "start tracing a process, or all that match"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pid",
        type=pid_or_name,
        action=StoreProcess,
        nargs="?",
        metavar="PID|NAME",
        help="a running process, or all with this short name or executable name (a shell pattern)",
    )
    parser.add_argument("--pid", type=pid, action=StoreProcess, metavar="N", help="the same as PID")
    parser.add_argument("--unit", metavar="UNIT", help="all processes of a systemd unit (a shell pattern)")
    parser.add_argument(
        "--container", metavar="ID", help="all processes of a container: its id, or the beginning of it"
    )
    parser.add_argument(
        "--mode",
        choices=[mode.value for mode in ATTACH_MODES],
        help="exact: record every block; sampled: record some and estimate the rest; "
        "auto: exact until that exceeds the budget; inside: what a sampler inside the program announces "
        "(default: inside if there is a sampler, else exact)",
    )
    parser.add_argument(
        "--wait",
        action="store_true",
        help="wait for the verdict, print it, and exit with its code (docs/exit-codes.md)",
    )
    parser.add_argument(
        "--for",
        dest="wait_s",
        type=duration_s,
        metavar="TIME",
        help=f"with --wait: how long to watch, unless all of them end earlier ({WAIT_S}s)",
    )
    parser.add_argument("--json", action="store_true", help="with --wait: print JSON (docs/json.md)")
    parser.add_argument(
        "--enable-profile",
        action="store_true",
        help="turn on the heap profile of a Go program that has none, by writing its sampling rate into the "
        "running process; detach restores it",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask whether to write into the process")


def run(arguments: argparse.Namespace) -> int:
    """Attach and print a line about each process; or wait, and print the verdicts."""
    selection = _selection(arguments)
    if not arguments.wait and (arguments.json or arguments.wait_s is not None):
        arguments.wrong_usage("--for and --json need --wait")
    client = DaemonClient(arguments.socket)
    if selection is None:
        pids: tuple[int, ...] = (arguments.pid,)
    else:
        pids = client.matching(selection)
        if not pids:
            hint = "`bpfleakctl policy` lists all processes; a script has the name of its interpreter"
            raise NoSuchProcess(f"no process matches {selection.words}", hint)
    who = ", ".join(map(str, pids))
    if arguments.enable_profile and not arguments.yes and not _agrees(who):
        print("bpfleakctl: nothing was done: --enable-profile needs confirmation, or --yes", file=sys.stderr)
        return 1
    traced, code = _attach_all(client, pids, arguments)
    if not arguments.wait:
        return code
    wait_s = WAIT_S if arguments.wait_s is None else arguments.wait_s
    return await_verdicts(client, traced, wait_s, as_json=arguments.json, otherwise=code)


def _selection(arguments: argparse.Namespace) -> ProcessSelection | None:
    """The selected processes; None: the one with the pid."""
    wanted, others = arguments.pid, (arguments.unit, arguments.container)
    if wanted is None and others == (None, None):
        arguments.wrong_usage("name the process: PID, NAME, --pid N, --unit UNIT or --container ID")
    if not isinstance(wanted, int):
        return ProcessSelection(wanted, *others)
    if others != (None, None):
        arguments.wrong_usage("a pid names one process: leave out --unit and --container")
    return None


def _attach_all(
    client: DaemonClient, pids: tuple[int, ...], arguments: argparse.Namespace
) -> tuple[list[int], int]:
    """Attach to each; returns those traced now, and the exit code of the first error, or 0."""
    traced, code = [], 0
    for each in pids:
        try:
            with waiting(f"attaching to {each}"):
                row = client.attach(
                    each,
                    arguments.mode and TracingMode(arguments.mode),
                    enable_profile=arguments.enable_profile,
                )
        except BpfleakdError as error:
            if isinstance(error, AlreadyAttached) and (arguments.wait or len(pids) > 1):
                traced.append(each)
                continue
            if len(pids) == 1:
                raise
            print(f"bpfleakctl: {each}: {printable(error.message)}", file=sys.stderr)
            code = code or error.exit_code
        else:
            traced.append(each)
            if not arguments.json:
                _print_attached(row)
    return traced, code


def _print_attached(row: ProcessRow) -> None:
    print(attached_line(row))
    for note in row.process.notes:
        print(printable(note))
    # A log shows it before the wait.
    sys.stdout.flush()


def _agrees(who: str) -> bool:
    """Ask for confirmation on the terminal; False without a terminal."""
    if not sys.stdin.isatty():
        return False
    answer = input(f"write the rate of the heap profile (runtime.MemProfileRate) into process {who}? [y/N] ")
    return answer.strip().lower() in ("y", "yes")
