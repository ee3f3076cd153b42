"""`bpfleakctl`: sends requests to the daemon, and shows the answers.

Each command is a module under commands/, imported when it is used. `main` prints all errors and chooses their
exit codes.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bpfleakd import __version__
from bpfleakd.cli.arguments import socket_from_environment
from bpfleakd.cli.examples import add_examples
from bpfleakd.cli.suggesting_parser import SuggestingParser
from bpfleakd.errors import BpfleakdError, ConfigError, OutputFailed
from bpfleakd.paths import DEFAULT_SOCKET_PATH
from bpfleakd.printable import printable

# Modules under commands/, in the order of the help.
_COMMANDS = (
    "attach",
    "detach",
    "run",
    "ps",
    "policy",
    "top",
    "report",
    "scan",
    "types",
    "names",
    "diff",
    "reports",
    "maps",
    "history",
    "analyze",
    "export",
    "doctor",
)

# What a shell reports for a program ended by SIGINT and by SIGPIPE.
_INTERRUPTED = 130
_BROKEN_PIPE = 141

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    _open_what_is_closed()
    try:
        if not words:
            make_parser().print_help(sys.stderr)
            return ConfigError.exit_code
        arguments = make_parser(_needed(words)).parse_args(words)
        if getattr(arguments, "needs_process", False) and arguments.pid is None:
            arguments.wrong_usage(
                "name the process: PID, NAME, or --pid N (`bpfleakctl ps` lists the traced ones)"
            )
        _write_what_the_terminal_lacks_as_escapes()
        if getattr(arguments, "needs_one", False) and isinstance(arguments.pid, str):
            arguments.pid = _pid_of_name(arguments)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BpfleakdError as error:
        print(f"bpfleakctl: {printable(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {printable(error.hint)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`).
        _discard_output()
        return _BROKEN_PIPE
    except OSError as error:
        # Standard output is a file on a full disk: all other errors of files are translated where they occur.
        if error.errno not in _FULL:
            raise
        _discard_output()
        print(f"bpfleakctl: cannot write the output: {error.strerror}", file=sys.stderr)
        return OutputFailed.exit_code


def _open_what_is_closed() -> None:
    """Open the streams that the caller has closed (`>&-`): Python has none then. The output is dropped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _discard_output() -> None:
    """Python would write the rest when it exits, fail, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _pid_of_name(arguments: argparse.Namespace) -> int:
    from bpfleakd.api.client import DaemonClient
    from bpfleakd.cli.named_process import pid_of_name

    return pid_of_name(DaemonClient(arguments.socket), arguments.pid)


def _needed(words: Sequence[str]) -> Sequence[str]:
    """The commands whose parsers a command line needs: its own, or all for help and messages.

    Importing all of them takes longer than most commands.
    """
    remaining = iter(words)
    for word in remaining:
        if word == "--socket":
            next(remaining, None)
        elif not word.startswith("--socket="):
            return [word] if word in _COMMANDS else _COMMANDS
    return _COMMANDS


def make_parser(names: Sequence[str] = _COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of all commands, or only of those that are named."""
    parser = SuggestingParser(
        prog="bpfleakctl",
        description="Query and control bpfleakd, which finds memory leaks in running programs.",
    )
    _add_socket(parser, socket_from_environment() or DEFAULT_SOCKET_PATH)
    parser.add_argument("--version", action="version", version=f"bpfleakctl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        command = importlib.import_module(f"bpfleakd.cli.commands.{name}")
        command_parser = commands.add_parser(name, help=command.HELP)
        command.add_arguments(command_parser)
        command_parser.set_defaults(run=command.run, wrong_usage=command_parser.error)
        # Accepted after the command, too; suppressed, so it does not overwrite a value before the command.
        _add_socket(command_parser, argparse.SUPPRESS)
        add_examples(command_parser, name, command.HELP)
    return parser


def _add_socket(parser: argparse.ArgumentParser, default: Path | str) -> None:
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        default=default,
        help=f"the daemon's socket (also: BPFLEAKD_SOCKET; default: {DEFAULT_SOCKET_PATH})",
    )


def _write_what_the_terminal_lacks_as_escapes() -> None:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
