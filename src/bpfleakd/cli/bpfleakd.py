"""`bpfleakd`: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

# First, so that structlog is imported in the way that logs.py explains.
from bpfleakd import __version__
from bpfleakd.cli.arguments import pid, socket_from_environment
from bpfleakd.config import Config, MatchConfig, RuleConfig
from bpfleakd.config_file import DEFAULT_CONFIG_PATH, load_config
from bpfleakd.daemon import logs  # noqa: F401
from bpfleakd.errors import BpfleakdError
from bpfleakd.kernel.child import start_ahead
from bpfleakd.model.process import TracingMode
from bpfleakd.printable import printable

__all__ = ["main"]

_INTERRUPTED = 130
_LOADER = "bpfleakd.kernel.loader"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until a signal; return its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        config = _load(arguments)
        if arguments.check_config:
            print(_checked(arguments.config))
            return 0
        if arguments.cleanup:
            return _cleaned_up(config, arguments.unless_restarting)
        start_ahead(_LOADER)
        # Only now: everything of the daemon comes with it.
        from bpfleakd.daemon import daemon

        return daemon.run(config, lambda: _load(arguments), keep_on_stop=arguments.keep_on_stop)
    except BpfleakdError as error:
        print(f"bpfleakd: {printable(error.message)}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {printable(error.hint)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bpfleakd", description="Finds memory leaks in running programs.")
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
        help="trace these processes exactly, whatever the policy says of them",
    )
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help="listen here (also: BPFLEAKD_SOCKET; over the configuration)",
    )
    parser.add_argument(
        "--keep-on-stop",
        action="store_true",
        help="after SIGTERM leave probes and tables to the next daemon (after Ctrl-C nothing is left)",
    )
    parser.add_argument(
        "--cleanup",
        action="store_true",
        help="remove what a daemon that was killed left in the kernel, and end; refused while one runs",
    )
    parser.add_argument(
        "--unless-restarting",
        metavar="UNIT",
        help="with --cleanup, in ExecStopPost: do nothing if systemd is going to start the unit again",
    )
    parser.add_argument("--check-config", action="store_true", help="check the configuration and end")
    parser.add_argument("--version", action="version", version=f"bpfleakd {__version__}")
    return parser


def _load(arguments: argparse.Namespace) -> Config:
    """Return the configuration with the command line on top."""
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
        print(f"{unit} is going to be started again: everything is left to it")
        return 0
    for line in clean_up(config.bpffs_dir, config.socket) or ["there was nothing to remove"]:
        print(printable(line))
    return 0


def _checked(named: Path | None) -> str:
    path = named or DEFAULT_CONFIG_PATH
    return f"{path}: ok" if path.exists() else f"there is no {path}: the defaults hold"


if __name__ == "__main__":
    sys.exit(main())
