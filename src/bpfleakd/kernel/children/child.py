"""Short-lived child processes, for work whose libraries would stay in the daemon's memory.

A child is a module with `main(request) -> reply`, both JSON values. It is run as `python -m`, reads the
request from standard input and writes the reply to standard output. Any other output, also of C libraries,
goes to standard error. The child's BpfleakdError reaches the parent with its class, message and hint.

The kernel ends a child whose parent has been killed, so it does nothing more, such as pinning programs.

A child that was started ahead can receive its probable request in advance, and prepares it. Requests are
lines of standard input: the expected one, if any, and the real one.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from bpfleakd import errors
from bpfleakd.threads import usual_priority

KILLED_S = 5.0
_PR_SET_PDEATHSIG = 1
_LAST_LINES = 6

# The keys of the lines that a child reads.
_EXPECTED = "expected"
_REQUESTED = "requested"

# The children that `start_ahead` started and that have no request yet, by module.
_ahead: dict[str, Child] = {}


class Child:
    """A started child. `descriptors` are open in it under the same numbers."""

    def __init__(self, module: str, descriptors: Sequence[int] = ()) -> None:
        self._module = module
        self._process = start(module, subprocess.PIPE, descriptors)

    def expect(self, request: Any) -> None:
        """Send the probable request; if the child has ended meanwhile, `ask` fails."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            # Bypasses the buffer, which would keep the unsent rest for a child that has ended.
            os.write(self._process.stdin.fileno(), _line(_EXPECTED, request))

    def ask(self, request: Any, timeout_s: float) -> Any:
        """Send the request and return the reply; the child has ended then.

        Raises the child's own BpfleakdError, or KernelError if it ended in any other way.
        """
        module, child = self._module, self._process
        try:
            output, log = child.communicate(_line(_REQUESTED, request), timeout_s)
        except subprocess.TimeoutExpired as expired:
            child.kill()
            # A child that waits for a page of a file server ends only with that wait.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=KILLED_S)
            raise errors.KernelError(f"{module} did not end within {timeout_s:g} s") from expired
        if child.returncode != 0 or not output:
            raise ended(module, child.returncode, log)
        return result_of(output)

    def kill(self) -> None:
        """End the child, from any thread; `ask` then raises KernelError."""
        self._process.kill()

    def discard(self) -> None:
        """End a child that received no request."""
        self._process.kill()
        self._process.communicate()


def start(module: str, log: int | IO[bytes], descriptors: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start a module with pipes for requests and replies, and `log` for all else that it prints."""
    with usual_priority():
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=descriptors,
            # Ctrl-C in a terminal is for the parent, which ends its children in order.
            process_group=0,
        )


def start_ahead(module: str) -> None:
    """Start the child that `run_child` will need soon: it imports its modules meanwhile."""
    _ahead[module] = Child(module)


def expect_ahead(module: str, request: Any) -> None:
    """Send the probable request of `run_child` to the child that was started ahead, if any."""
    if module in _ahead:
        _ahead[module].expect(request)


def end_ahead() -> None:
    """End the children that were started ahead and not needed."""
    while _ahead:
        _ahead.popitem()[1].discard()


def run_child(module: str, request: Any, timeout_s: float = 300.0, descriptors: Sequence[int] = ()) -> Any:
    """Run `module` as a child with open `descriptors`, and return its reply.

    Raises the same errors as `Child.ask`.
    """
    child = (None if descriptors else _ahead.pop(module, None)) or Child(module, descriptors)
    return child.ask(request, timeout_s)


def serve(main: Callable[[Any], Any], prepare: Callable[[Any], None] = lambda _expected: None) -> None:
    """The child's side: answer the one request on standard input, after `prepare` with an expected one."""
    end_with_parent()
    reply_fd = take_output()
    message = json.loads(sys.stdin.buffer.readline())
    if _EXPECTED in message:
        prepare(message[_EXPECTED])
        message = json.loads(sys.stdin.buffer.readline())
    reply = reply_to(message[_REQUESTED], main)
    with open(reply_fd, "wb") as stream:
        stream.write(reply)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def take_output() -> int:
    """A descriptor of standard output for replies; what is printed from now on goes to standard error."""
    reply_fd = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return reply_fd


def ended(module: str, code: int, log: bytes) -> errors.KernelError:
    """The error of a child that ended without a reply, with its last words."""
    last_words = log.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
    return errors.KernelError(f"{module} ended with {code}: " + " | ".join(last_words))


def reply_to(request: Any, main: Callable[[Any], Any]) -> bytes:
    """A line with the result of `main`, or with its BpfleakdError."""
    try:
        reply = {"result": main(request)}
    except errors.BpfleakdError as error:
        reply = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    return json.dumps(reply).encode() + b"\n"


def result_of(reply: bytes) -> Any:
    """The result in such a line. Raises the error in it."""
    told = json.loads(reply)
    if "error" in told:
        failure = told["error"]
        raise errors.by_code(failure["code"])(failure["message"], failure["hint"])
    return told["result"]


def _line(key: str, request: Any) -> bytes:
    return json.dumps({key: request}).encode() + b"\n"
