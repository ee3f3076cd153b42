"""The answers of a continuing job, read as they arrive, without waiting."""

from __future__ import annotations

import socket
from typing import Generic, TypeVar

from bpfleakd.sandbox.channel import ChannelError, HelperFailed, JobFailed, decoded, message_extent
from bpfleakd.sandbox.orders import Failure

T = TypeVar("T")

_READ_BYTES = 1 << 18


class AnswerStream(Generic[T]):
    """Answers of one type, none longer than `bytes_max`. Closing it ends the job."""

    def __init__(self, channel: socket.socket, answer_type: type[T], bytes_max: int) -> None:
        """Takes ownership of `channel`."""
        channel.setblocking(False)
        self._channel = channel
        self._type = answer_type
        self._bytes_max = bytes_max
        self._pending = bytearray()

    def read(self) -> list[T]:
        """The answers since the last call, in order; at most about twice `bytes_max` at a time.

        Raises HelperFailed when the job has ended, or its answer is invalid.
        """
        is_over = self._receive()
        answers = self._whole_messages()
        if is_over and not answers:
            raise HelperFailed("its helper has ended")
        return answers

    @property
    def is_open(self) -> bool:
        """Whether it is still open."""
        return self._channel.fileno() >= 0

    def close(self) -> None:
        """End the job."""
        self._channel.close()

    def _receive(self) -> bool:
        """Receive available data; returns whether the other end has closed."""
        while len(self._pending) < 2 * self._bytes_max:
            try:
                part = self._channel.recv(_READ_BYTES)
            except BlockingIOError:
                return False
            except OSError as error:
                raise HelperFailed(str(error)) from error
            if not part:
                return True
            self._pending += part
        return False

    def _whole_messages(self) -> list[T]:
        answers: list[T] = []
        try:
            while (extent := message_extent(self._pending, self._bytes_max)) is not None:
                message = decoded(self._pending[slice(*extent)], self._type | Failure)  # type: ignore[arg-type]
                del self._pending[: extent[1]]
                if isinstance(message, Failure):
                    raise JobFailed(message.reason)
                answers.append(message)
        except ChannelError as error:
            raise HelperFailed(str(error)) from error
        return answers
