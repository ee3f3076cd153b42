"""A child process that answers one request after another, each in a fork of its own.

For short work that comes in series: modules are imported once, which takes 0.25 s with numpy, and the fork
returns the memory of its answer when it ends. `child` has processes for one request.

The child is a module whose `main(request) -> reply` takes and returns JSON values. Requests and replies are
lines of its standard input and output; any other output goes to standard error. It ends with its input, so
also when the daemon is killed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from bpfleakd import errors
from bpfleakd.kernel.children.child import (
    KILLED_S,
    end_with_parent,
    ended,
    reply_to,
    result_of,
    start,
    take_output,
)

_READ_BYTES = 1 << 20


class ChildSeries:
    """A started child. After any error but one of `main` itself it answers no more."""

    def __init__(self, module: str) -> None:
        self._module = module
        # A pipe that nobody reads would fill up.
        self._log = os.fdopen(os.memfd_create("child-log"), "r+b")
        self._process = start(module, self._log)

    def ask(self, request: Any, timeout_s: float) -> Any:
        """Send a request and return its reply.

        Raises the child's own BpfleakdError, or KernelError if it ended, or did not answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._raise_ended()
        return result_of(self._line(time.monotonic() + timeout_s, timeout_s))

    def kill(self) -> None:
        """End the child and what it does, from any thread; `ask` then raises KernelError."""
        self._process.kill()

    def close(self) -> None:
        """End the child, if it has not ended."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                # A request that was not sent.
                continue
        try:
            self._process.wait(KILLED_S)
        except subprocess.TimeoutExpired:
            # It waits for a page of a file server, and ends with that wait.
            return

    def _line(self, until_s: float, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        parts: list[bytes] = []
        waiting = select.poll()
        waiting.register(output, select.POLLIN)
        while not parts or not parts[-1].endswith(b"\n"):
            if not waiting.poll(1_000 * max(0.0, until_s - time.monotonic())):
                self.kill()
                raise errors.KernelError(f"{self._module} did not answer within {timeout_s:g} s")
            part = os.read(output, _READ_BYTES)
            if not part:
                self._raise_ended()
            parts.append(part)
        return b"".join(parts)

    def _raise_ended(self) -> NoReturn:
        code = self._process.wait(KILLED_S)
        self._log.seek(0)
        raise ended(self._module, code, self._log.read())


def serve_series(main: Callable[[Any], Any]) -> None:
    """The child's side: answer the requests on standard input until it ends."""
    reply_fd = take_output()
    own_pid = os.getpid()
    while line := sys.stdin.buffer.readline():
        worker = os.fork()
        if not worker:
            _answer(line, main, reply_fd, own_pid)
        _wait(worker)


def _answer(line: bytes, main: Callable[[Any], Any], reply_fd: int, parent_pid: int) -> NoReturn:
    """In the fork: write the reply, and end."""
    code = 1
    try:
        # To interrupt it, the daemon kills the child.
        end_with_parent()
        if os.getppid() != parent_pid:
            os._exit(code)
        with open(reply_fd, "wb") as stream:
            stream.write(reply_to(json.loads(line), main))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(worker: int) -> None:
    """Wait for the fork, or for the end of the daemon. Whatever is wrong with one of them ends the child."""
    descriptor = os.pidfd_open(worker)
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    # Nothing but POLLHUP: the next request may be there.
    waiting.register(sys.stdin.fileno(), 0)
    if (descriptor, select.POLLIN) not in waiting.poll():
        sys.exit(1)
    os.close(descriptor)
    _pid, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        # By a signal: as a shell reports it.
        sys.exit(128 - code if code < 0 else code)
