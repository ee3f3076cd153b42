"""`bpfleakctl doctor`: what this machine supports, and how to fix what is missing."""

from __future__ import annotations

import argparse

from bpfleakd.cli.render.words import json_text
from bpfleakd.daemon.doctor import run_checks
from bpfleakd.model.daemon import CheckStatus

HELP = "check what this machine supports"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print them; 1 if one failed."""
    checks = run_checks(socket_path=arguments.socket)
    if arguments.json:
        print(json_text({"checks": checks}))
    else:
        # rich takes longer to import than all the rest: only where a table is drawn.
        from bpfleakd.cli.render.checks import checks_view
        from bpfleakd.cli.render.console import make_console

        make_console().print(checks_view(checks))
    return 1 if any(check.status == CheckStatus.FAIL for check in checks) else 0
