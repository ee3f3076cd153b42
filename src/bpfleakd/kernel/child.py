"""Short-lived child processes, for work whose libraries would weigh on the daemon for ever.

A child is a module with `main(request) -> reply`, both JSON values; it is run as `python -m`, reads the
request from standard input and writes the reply to standard output. Whatever else is printed there, also by
C libraries, goes to standard error. An error of ours crosses with its class, message and hint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bpfleakd import errors

__all__ = ["run_child", "serve"]


def run_child(module: str, request: Any, timeout_s: float = 60.0) -> Any:
    """Run `module` as a child and return its reply.

    Raises the child's own BpfleakdError, or KernelError if it ended in any other way.
    """
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", module],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise errors.KernelError(f"{module} did not end within {timeout_s:g} s") from expired
    if child.returncode != 0 or not child.stdout:
        last_words = child.stderr.decode(errors="replace").strip().splitlines()[-6:]
        raise errors.KernelError(f"{module} ended with {child.returncode}: " + " | ".join(last_words))
    reply = json.loads(child.stdout)
    if "error" in reply:
        failure = reply["error"]
        raise errors.by_code(failure["code"])(failure["message"], failure["hint"])
    return reply["result"]


def serve(main: Callable[[Any], Any]) -> None:
    """The other end: answer the one request on standard input."""
    reply_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    request = json.loads(sys.stdin.buffer.read())
    try:
        reply = {"result": main(request)}
    except errors.BpfleakdError as error:
        reply = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    with open(reply_fd, "w", encoding="ascii") as stream:
        json.dump(reply, stream)
