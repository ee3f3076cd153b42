"""Writes the shells' completions of bpfleakctl, from its parser, by shtab.

scripts/completions.py DIRECTORY
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import shtab

from bpfleakd.cli.arguments import pid, pid_or_name
from bpfleakd.cli.bpfleakctl import make_parser

# File names as each shell expects them.
FILES = {"bash": "bpfleakctl.bash", "zsh": "_bpfleakctl", "fish": "bpfleakctl.fish"}

# No characters with a meaning between double quotes in any of the shells.
_TRACED = r"bpfleakctl ps --json 2>/dev/null | sed -n 's/^ *.pid.: \([0-9]*\).*/\1/p'"
_RUNNING = "ls /proc | grep -x '[0-9]*'"


def _completer(name: str, command: str) -> dict[str, str | dict[str, str]]:
    """Return a completer for the words that a command prints."""
    return {
        "bash": f"_bpfleakctl_{name}",
        "zsh": f"_bpfleakctl_{name}",
        "fish": f"({command})",
        "preamble": {
            "bash": f'_bpfleakctl_{name}() {{ compgen -W "$({command})" -- "$1"; }}',
            "zsh": f'_bpfleakctl_{name}() {{ compadd -- ${{(f)"$({command})"}}; }}',
        },
    }


def _complete_arguments(parser: argparse.ArgumentParser, command: str = "") -> None:
    """Set shtab's completers for the arguments of a parser, by their types."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                _complete_arguments(below, name)
        elif action.type in (pid, pid_or_name):
            of_all = command in ("attach", "policy")
            action.complete = _completer("running", _RUNNING) if of_all else _completer("traced", _TRACED)
        elif action.type is Path or action.metavar in ("FILE", "BEFORE", "AFTER"):
            action.complete = shtab.FILE


def main() -> None:
    """Write the files."""
    parser = make_parser()
    _complete_arguments(parser)
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for shell, name in FILES.items():
        (directory / name).write_text(shtab.complete(parser, shell), encoding="utf-8")


if __name__ == "__main__":
    main()
