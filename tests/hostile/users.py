"""Programs of an unprivileged user, in a user and mount namespace that only he controls."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..kernel.machine import cannot_run, need_tool

NOBODY = 65534


def as_nobody(*command: str | Path) -> list[str]:
    """The command, as a user without any rights."""
    drop = [need_tool("setpriv"), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return [*drop, "--inh-caps=-all", *map(str, command)]


def in_own_namespace(script: Sequence[str], *command: str | Path) -> list[str]:
    """Lines of shell that are run as root of a namespace of that user, and then the command."""
    program = " ".join(shlex.quote(str(part)) for part in command)
    text = "\n".join(["set -e", *script, f"exec {program}"])
    return as_nobody(need_tool("unshare"), "--user", "--map-root-user", "--mount", "sh", "-c", text)


def need_user_namespaces() -> None:
    """End the test where an unprivileged user gets no namespaces."""
    done = subprocess.run(in_own_namespace([], "true"), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        cannot_run(f"unprivileged user namespaces are off: {done.stderr.strip()}")
