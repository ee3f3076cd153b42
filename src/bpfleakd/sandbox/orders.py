"""What the daemon and its helpers say to each other."""

from __future__ import annotations

import socket

import msgspec

from bpfleakd.sandbox.channel import send

__all__ = ["Answers", "Failure", "Order", "Spent"]


class Order(msgspec.Struct):
    """A job, and what it may take: memory, CPU time (whole seconds) and time by the clock, 0 for no limit.

    `is_metered`: its last answer says what it took.
    """

    job: str
    memory_bytes: int
    cpu_s: int
    real_s: float
    is_metered: bool = False


class Spent(msgspec.Struct, tag=True):
    """The CPU time that a job took, as its process says."""

    cpu_s: float


class Failure(msgspec.Struct, tag=True):
    """A job that could not be done, and why: a sentence that may hold what the file says."""

    reason: str


class Answers:
    """What a job answers by: it is called with each message.

    Its descriptor (`fileno`) hangs up when nobody listens any more: a job that waits for something else polls
    it, too.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel

    def __call__(self, message: object) -> None:
        """Send an answer. Raises ChannelError."""
        send(self._channel, message)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._channel.fileno()
