"""`bpfleakd`: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bpfleakd import __version__
from bpfleakd.cli.arguments import pid, socket_from_environment
from bpfleakd.cli.suggesting_parser import SuggestingParser
from bpfleakd.config import Config, MatchConfig, RuleConfig
from bpfleakd.config_file import DEFAULT_CONFIG_PATH, load_config
from bpfleakd.errors import BpfleakdError, ConfigError
from bpfleakd.kernel.children.child import start_ahead
from bpfleakd.model.process import TracingMode
from bpfleakd.printable import printable

_INTERRUPTED = 130
_LOADER = "bpfleakd.kernel.loader"

_VARIABLE = "PYTHONMALLOC"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until a signal; return its exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    _refuse_contradictions(parser, arguments)
    try:
        config = _load(arguments)
        if arguments.check_config:
            return _checked(config, arguments.config)
        if arguments.cleanup:
            return _cleaned_up(config, arguments.unless_restarting)
        if argv is None:
            restart_with_malloc()
            # Else numpy starts threads for linear algebra, here and in each child: half of its start-up.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # The loader works while everything else is imported: both take most of a second.
        start_ahead(_LOADER)
        with _without_collector():
            from bpfleakd.daemon.loading import load_ahead

            load_ahead(config)
            from bpfleakd.daemon import daemon

        return daemon.run(config, lambda: _load(arguments), keep_on_stop=arguments.keep_on_stop)
    except BpfleakdError as error:
        print(f"bpfleakd: {printable(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {printable(error.hint)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Import modules within this context without the collector, which need never examine them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the daemon's command line."""
    parser = SuggestingParser(
        prog="bpfleakd", description="Daemon that finds memory leaks in running programs."
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"configuration (default: {DEFAULT_CONFIG_PATH}, which may be absent)",
    )
    parser.add_argument(
        "--pid",
        type=pid,
        nargs="+",
        action="extend",
        default=[],
        metavar="N",
        dest="pids",
        help="trace these processes exactly, regardless of the policy",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="listen here (also: BPFLEAKD_SOCKET); overrides the configuration",
    )
    parser.add_argument(
        "--keep-on-stop",
        action="store_true",
        help="after SIGTERM keep probes and tables for the next daemon (Ctrl-C still removes them)",
    )
    parser.add_argument(
        "--cleanup",
        action="store_true",
        help="remove what a killed daemon left in the kernel, and exit; refused while a daemon runs",
    )
    parser.add_argument(
        "--unless-restarting",
        metavar="UNIT",
        help="with --cleanup, in ExecStopPost: do nothing if systemd is about to restart the unit",
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        help="check the configuration and the directories, files, users and addresses in it, and exit",
    )
    parser.add_argument("--version", action="version", version=f"bpfleakd {__version__}")
    return parser


def _refuse_contradictions(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Reject contradictory options, like an invalid option."""
    options = {
        "--pid": arguments.pids,
        "--keep-on-stop": arguments.keep_on_stop,
        "--cleanup": arguments.cleanup,
        "--check-config": arguments.check_config,
    }
    given = [name for name, value in options.items() if value]
    if len(given) > 1 and (arguments.cleanup or arguments.check_config):
        parser.error(f"{' and '.join(given)} exclude each other")
    if arguments.unless_restarting is not None and not arguments.cleanup:
        parser.error("--unless-restarting needs --cleanup")


def _load(arguments: argparse.Namespace) -> Config:
    """The configuration, overridden by the command line."""
    config = load_config(arguments.config)
    socket = arguments.socket or socket_from_environment()
    wanted = [RuleConfig(match=MatchConfig(pid=pid), mode=TracingMode.EXACT) for pid in arguments.pids]
    return msgspec.structs.replace(
        config,
        socket=socket.absolute() if socket else config.socket,
        policy=msgspec.structs.replace(config.policy, rules=(*wanted, *config.policy.rules)),
    )


def _cleaned_up(config: Config, unit: str | None) -> int:
    from bpfleakd.daemon.cleanup import clean_up, comes_back

    if unit is not None and comes_back(unit):
        print(f"{unit} is about to restart: leaving everything in place")
        return 0
    for line in clean_up(config.bpffs_dir, config.socket) or ["nothing to remove"]:
        print(printable(line))
    return 0


def _checked(config: Config, named: Path | None) -> int:
    from bpfleakd.daemon.config_check import problems

    path = named or DEFAULT_CONFIG_PATH
    found = problems(config)
    for problem in found:
        print(f"bpfleakd: {printable(f'{path}: {problem}')}", file=sys.stderr)
    if found:
        return ConfigError.exit_code
    print(f"{path}: ok" if path.exists() else f"{path} does not exist: using defaults")
    return 0


def restart_with_malloc() -> None:
    """Run this program again, once, with its objects in the C heap, unless the environment chose already.

    Python's own allocator gives memory back in pieces of a megabyte, and only if a piece is empty. A process
    with 32,768 call sites left 20 of them behind, each for a few objects that were made meanwhile. From the C
    heap `malloc_trim` gives back every free page. The allocator is chosen when Python starts (PYTHONMALLOC);
    programs that the daemon starts choose theirs.
    """
    if os.environ.pop(_VARIABLE, None) is None and not sys.flags.ignore_environment:
        # Ctrl-C has to wait: an interpreter that is interrupted at its start prints a traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _VARIABLE: "malloc"})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


if __name__ == "__main__":
    sys.exit(main())
