"""The daemon's messages to the service manager that started it: sd_notify(3), for a unit of Type=notify.

Messages go to the socket named by NOTIFY_SOCKET; without one nothing is sent. The watchdog is fed by the
loop that traces, and only when a tick has really ended: a tracer that hangs is restarted.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

from bpfleakd.model.metrics import MetricsSnapshot
from bpfleakd.model.process import ProcessState

_ADDRESS_VARIABLE = "NOTIFY_SOCKET"
_WATCHDOG_VARIABLE = "WATCHDOG_USEC"
# The manager reads at once, unless it has problems itself; then losing a message is better than waiting.
_SEND_TIMEOUT_S = 1.0


def systemd_directory(variable: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The directory that CacheDirectory= or the like of the unit created: see systemd.exec(5)."""
    first = environ.get(variable, "").partition(":")[0]
    return Path(first) if first.startswith("/") else None


class ServiceManager:
    """The service manager, if there is one. No method raises: the daemon works without it."""

    def __init__(
        self,
        address: str | None,
        *,
        watchdog_s: float = math.inf,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`watchdog_s` is after how long without a tick we are taken to hang."""
        self.watchdog_s = watchdog_s
        # "@name" is a socket in the abstract namespace, whose names begin with a zero byte (unix(7)).
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._clock_ns = clock_ns
        self._status = ""

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> ServiceManager:
        """Take NOTIFY_SOCKET out of the environment, so that no child of ours speaks in our name."""
        watchdog_us = environ.pop(_WATCHDOG_VARIABLE, "")
        watchdog_s = int(watchdog_us) / 1e6 if watchdog_us.isdecimal() else math.inf
        return cls(environ.pop(_ADDRESS_VARIABLE, None), watchdog_s=watchdog_s)

    def starting(self, status: str) -> None:
        """Report the stage of the start."""
        self._send(STATUS=status)

    def ready(self, status: str) -> None:
        """Report the end of the start, or of a reload."""
        self._status = status
        self._send(READY=1, STATUS=status)

    def reloading(self) -> None:
        """Report the beginning of a reload; `ready` ends it."""
        self._send(RELOADING=1, MONOTONIC_USEC=self._clock_ns() // 1_000)

    def stopping(self, status: str) -> None:
        """Report that the daemon is about to end."""
        self._send(STOPPING=1, STATUS=status)

    def tick_ended(self, status: str) -> None:
        """Feed the watchdog, and show `status` if it has changed."""
        if status == self._status:
            self._send(WATCHDOG=1)
        else:
            self._status = status
            self._send(WATCHDOG=1, STATUS=status)

    def _send(self, **assignments: object) -> None:
        if not self._address:
            return
        message = "".join(f"{name}={value}\n" for name, value in assignments.items())
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(_SEND_TIMEOUT_S)
            channel.sendto(message.encode(), self._address)


def status_line(snapshot: MetricsSnapshot) -> str:
    """The line in `systemctl status`: "3 traced, 1 growing, 0 lost".

    A process grows if it has more live bytes than at the start of the history window; lost is the sum of all
    losses.
    """
    traced = [row for row in snapshot.processes if row.process.state is ProcessState.TRACED]
    growing = sum((row.process.growth_bytes_per_s or 0.0) > 0 for row in traced)
    lost = sum(sum(row.losses.values()) for row in traced)
    return f"{len(traced)} traced, {growing} growing, {lost:,} lost"
