"""The messages between the daemon and its helpers."""

from __future__ import annotations

import socket

import msgspec

from bpfleakd.sandbox.channel import send


class Order(msgspec.Struct):
    """A job and its limits: memory, CPU time (whole seconds) and elapsed time, 0 for no limit.

    `is_metered`: its last answer contains its CPU time. `is_idle`: it runs at idle priority.
    """

    job: str
    memory_bytes: int
    cpu_s: int
    real_s: float
    is_metered: bool = False
    is_idle: bool = False


class Spent(msgspec.Struct, tag=True):
    """The CPU time of a job, as its process reports it."""

    cpu_s: float


class Failure(msgspec.Struct, tag=True):
    """A failed job, and the reason: a sentence that may contain text of the file."""

    reason: str


class Answers:
    """Sends the answers of a job: call it with each message.

    Its descriptor (`fileno`) hangs up when nobody listens any more: a job that waits for something else
    should poll it, too.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def __call__(self, message: object) -> None:
        """Send an answer. Raises ChannelError."""
        send(self._channel, message)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._channel.fileno()
