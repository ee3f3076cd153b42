"""The inspector of a Node.js process: opened for one sampling of its heap, on request only, and closed again.

While it is open, every user of the machine can run code in the process, so rules are strict:

- Node.js opens it on SIGUSR1. Nothing is sent that would end the process or run a handler of the program
  (signal_handles.py), nor while somebody else has the port, or if other machines could connect.
- Nothing is said to a socket before the tables of the kernel confirm that the process is at its other end.
- A helper without rights holds the conversation (inspector_jobs.py).
- An inspector that was open before stays open, as it is.
- A timer in the process closes it, too: the daemon may end in between.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

from bpfleakd import errors
from bpfleakd.process.listeners import Listener, TcpSockets
from bpfleakd.process.network_namespace import connected
from bpfleakd.process.proc_text import catches_signal
from bpfleakd.process.process import ProcessInfo, read_process
from bpfleakd.runtimes.runtime import RuntimeFailure, SampledHeap
from bpfleakd.runtimes.v8.inspector_jobs import (
    CLOSE_JOB,
    SAMPLE_JOB,
    Alive,
    Closing,
    Conversation,
)
from bpfleakd.runtimes.v8.node_options import read_options
from bpfleakd.runtimes.v8.signal_handles import handles_signal
from bpfleakd.sandbox.channel import HelperFailed
from bpfleakd.sandbox.helpers import Helpers

_PROC = Path("/proc")
_OPENING_TIMEOUT_S = 5.0
_CLOSING_TIMEOUT_S = 5.0
_ACCEPT_TIMEOUT_S = 2.0
_POLL_S = 0.02
# For the collection and the answer, in addition to the sampling time.
_TALK_LIMIT_S = 30.0
_TIMER_SPARE_S = 30.0
_INTERVAL_BYTES = 32 << 10
_ANSWER_MAX_BYTES = 4 << 20
# Measured: 0.04 s for 19 MiB alive, 0.11 to 0.18 s for 257 MiB.
_S_PER_BYTE = 0.5 / (1 << 30)
_S_AT_LEAST = 0.04

# The options are --inspect-port=HOST:PORT, --inspect=…, and others with the same values. The real address
# shows only when it is open.
_HOST, _PORT = "127.0.0.1", 9229
_OPTION = re.compile(r"--(?:inspect(?:-brk|-wait|-port)?|debug-port)")
_ADDRESS = re.compile(r"(?:(.*):)?(\d{1,5})|(.+)")


class InspectorError(RuntimeFailure):
    """The inspector cannot be used. The message is the end of a sentence about the process."""


class V8Inspector:
    """The inspector of one process. `heap_bytes` is the size of its heap, None if unknown."""

    def __init__(
        self,
        helpers: Helpers,
        process: ProcessInfo,
        heap_bytes: Callable[[], int | None],
        proc: Path = _PROC,
    ) -> None:
        self._helpers = helpers
        self._process = process
        self._heap_bytes = heap_bytes
        self._proc = proc
        self._sockets = TcpSockets(process.id.pid, proc)

    def stops_s(self) -> float | None:
        """How long the collection will stop the process, in seconds, approximately; None if unknown."""
        heap_bytes = self._heap_bytes()
        return None if heap_bytes is None else _S_AT_LEAST + heap_bytes * _S_PER_BYTE

    def address(self) -> tuple[str, bool]:
        """Its address, now or once opened, and whether it is open.

        Raises InspectorError if it cannot be opened.
        """
        with _as_failure():
            expected = inspector_address(self._process.id.pid, self._proc)
            listeners = self._sockets.listeners()
            is_open = self._open_one(expected.port, listeners) is not None
            if not is_open:
                self._check_may_be_opened(expected, listeners)
            return str(expected), is_open

    def sample(self, seconds: float) -> SampledHeap:
        """Sample allocations, and return the live part of them. Waits. Raises InspectorError."""
        with _as_failure():
            self._helpers.prepare()
            expected = inspector_address(self._process.id.pid, self._proc)
            before = self._open_one(expected.port, self._sockets.listeners())
            listener = before or self._opened(expected)
            closes = before is None
            alive = closing = failure = None
            try:
                order = Conversation(
                    host=str(listener),
                    limit_s=seconds + _TALK_LIMIT_S,
                    sample_s=seconds,
                    interval_bytes=_INTERVAL_BYTES,
                    closes=closes,
                    timer_s=seconds + _TALK_LIMIT_S + _TIMER_SPARE_S,
                )
                for answer in self._talk(SAMPLE_JOB, listener, order):
                    if isinstance(answer, Alive):
                        alive = answer
                    else:
                        closing = answer
            except (HelperFailed, InspectorError, OSError) as error:
                failure = error
            is_left_open = closes and not self._is_closed(listener, is_told=closing is not None)
            if alive is None:
                stays = f"; it stays open at {listener}" if is_left_open else ""
                reason = failure or "the helper that talks to it has ended"
                raise InspectorError(f"its inspector does not answer: {reason}{stays}") from failure
            return SampledHeap(
                alive.functions,
                alive.live_bytes,
                alive.sampled_s,
                str(listener),
                not closes,
                alive.is_others,
                is_left_open,
            )

    def _open_one(self, port: int, listeners: list[Listener]) -> Listener | None:
        return next((one for one in listeners if one.is_own and one.port == port), None)

    def _check_may_be_opened(self, expected: Listener, listeners: list[Listener]) -> None:
        """Raise InspectorError if SIGUSR1 would do harm or no good."""
        try:
            now = read_process(self._process.id.pid, self._proc)
        except errors.BpfleakdError as error:
            raise InspectorError("it has ended") from error
        if now.id != self._process.id:
            raise InspectorError("it has ended")
        if now.state in "TtZX":
            raise InspectorError("it is stopped")
        if not expected.is_loopback:
            raise InspectorError(f"it would open its inspector at {expected}, for other machines, too")
        if any(one.port == expected.port for one in listeners):
            raise InspectorError(f"another process has port {expected.port}, which its inspector needs")
        if not catches_signal(self._proc / str(self._process.id.pid), signal.SIGUSR1):
            raise InspectorError("it does not catch SIGUSR1, which would end it")
        has_handler = handles_signal(self._process.id.pid, signal.SIGUSR1)
        if has_handler is None:
            raise InspectorError("it is unknown whether it has its own handler for SIGUSR1")
        if has_handler:
            raise InspectorError(
                "it has its own handler for SIGUSR1, which would open the inspector otherwise"
            )

    def _opened(self, expected: Listener) -> Listener:
        """Make the process open the inspector."""
        pidfd = os.pidfd_open(self._process.id.pid)
        try:
            before = self._sockets.listeners()
            self._check_may_be_opened(expected, before)
            known = {one.inode for one in before}
            signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
            deadline_s = time.monotonic() + _OPENING_TIMEOUT_S
            while time.monotonic() < deadline_s:
                new = [one for one in self._sockets.listeners() if one.is_own and one.inode not in known]
                if found := self._open_one(expected.port, new):
                    return found
                time.sleep(_POLL_S)
        finally:
            os.close(pidfd)
        raise InspectorError(
            f"it does not open its inspector at {expected} within {_OPENING_TIMEOUT_S:.0f} s"
        )

    def _talk(self, job: str, listener: Listener, order: Conversation) -> Iterator[Alive | Closing]:
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(self._connection(listener)).fileno() for _ in range(2)]
            for answer in self._helpers.answers(
                job,
                order,
                files,
                Alive | Closing,  # type: ignore[arg-type]
                limit_s=order.limit_s + 1,
                answers_max=2,
                bytes_max=_ANSWER_MAX_BYTES,
            ):
                # The helper has its own descriptor: when that is closed, the process need not wait for the
                # daemon.
                stack.close()
                yield answer

    @contextlib.contextmanager
    def _connection(self, listener: Listener) -> Iterator[socket.socket]:
        """A connection that the process has accepted."""
        with connected(
            self._process.id.pid, listener.reachable, listener.port, _ACCEPT_TIMEOUT_S
        ) as connection:
            deadline_s = time.monotonic() + _ACCEPT_TIMEOUT_S
            while not self._sockets.has_accepted(connection):
                if time.monotonic() > deadline_s:
                    raise InspectorError("another process is behind the port of its inspector")
                time.sleep(_POLL_S)
            yield connection

    def _is_closed(self, listener: Listener, *, is_told: bool) -> bool:
        """Whether the inspector closes in time; sends the request again unless `is_told`."""
        with contextlib.suppress(HelperFailed, InspectorError, OSError):
            if not is_told:
                order = Conversation(host=str(listener), limit_s=_CLOSING_TIMEOUT_S)
                list(self._talk(CLOSE_JOB, listener, order))
        deadline_s = time.monotonic() + _CLOSING_TIMEOUT_S
        while time.monotonic() < deadline_s:
            try:
                if all(one.inode != listener.inode for one in self._sockets.listeners()):
                    return True
            except OSError:
                # The process has ended.
                return True
            time.sleep(_POLL_S)
        return False


@contextlib.contextmanager
def _as_failure() -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        words = "it is another user's, or has its own network, and the daemon lacks CAP_KILL or may not enter"
        raise InspectorError(words) from error
    except UnknownAddress as error:
        raise InspectorError(str(error)) from error
    except OSError as error:
        raise InspectorError(f"its inspector cannot be reached: {error.strerror or error}") from error
    except HelperFailed as error:
        raise InspectorError(f"its inspector cannot be read: {error}") from error


class UnknownAddress(Exception):
    """The address cannot be determined. The message is the end of a sentence."""


def inspector_address(pid: int, proc: Path) -> Listener:
    """The inspector's address. Raises UnknownAddress, or OSError if the process has ended."""
    host, port = _HOST, _PORT
    for name, value in read_options(pid, proc):
        if not value or not _OPTION.fullmatch(name):
            continue
        found = _ADDRESS.fullmatch(value)
        if found is None:
            continue
        host = (found[1] or found[3] or host).strip("[]")
        port = int(found[2]) if found[2] else port
    if port == 0:
        raise UnknownAddress("it was started with a random port for its inspector")
    try:
        ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as error:
        raise UnknownAddress("it was started with a host name for its inspector") from error
    return Listener("127.0.0.1" if host == "localhost" else host, port, inode=0, is_own=True)
