"""`bpfleakctl doctor`: what this machine supports, and how to fix what is missing."""

from __future__ import annotations

import argparse

from bpfleakd.cli.show import show
from bpfleakd.daemon.doctor import run_checks
from bpfleakd.model.daemon import CheckStatus

HELP = "check what this machine supports"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print them; 1 if one failed."""
    checks = run_checks(socket_path=arguments.socket)

    def view(_width: int | None) -> object:
        from bpfleakd.cli.render.checks import checks_view

        return checks_view(checks)

    show({"checks": checks}, view, as_json=arguments.json)
    return 1 if any(check.status == CheckStatus.FAIL for check in checks) else 0
