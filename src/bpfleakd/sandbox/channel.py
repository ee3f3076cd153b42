"""Messages between the daemon and its helpers: a length, then MessagePack, with descriptors attached.

Each end limits the length of messages that it accepts. A longer or invalid message ends the communication:
`ChannelError`.
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

MESSAGE_BYTES_MAX = 256 << 20
DESCRIPTORS_MAX = 16
_LENGTH = struct.Struct("=I")

T = TypeVar("T")


class ChannelError(Exception):
    """The other end is gone, late, or sends invalid messages."""


class HelperFailed(Exception):
    """A job failed, with the reason."""


class JobFailed(HelperFailed):
    """A job reports that it failed because of its input."""


def send(channel: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    """Send a message, with open descriptors. Raises ChannelError."""
    data = msgspec.msgpack.encode(message)
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        channel.sendmsg([_LENGTH.pack(len(data))], beside)
        channel.sendall(data)
    except OSError as error:
        raise ChannelError(f"it does not listen: {error.strerror or error}") from error


def receive(
    channel: socket.socket,
    kind: type[T],
    *,
    deadline_s: float | None = None,
    bytes_max: int = MESSAGE_BYTES_MAX,
) -> T:
    """Receive a message of a type before a deadline (CLOCK_MONOTONIC). Raises ChannelError."""
    return decoded(_received(channel, deadline_s, bytes_max, b""), kind)


def receive_with_descriptors(channel: socket.socket, kind: type[T]) -> tuple[T, list[int]]:
    """Receive a message and its descriptors, which the caller then owns. Raises ChannelError."""
    ancillary_bytes = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
    try:
        begin, beside, _flags, _address = channel.recvmsg(
            _LENGTH.size, ancillary_bytes, socket.MSG_CMSG_CLOEXEC
        )
    except OSError as error:
        raise ChannelError(str(error)) from error
    descriptors = array.array("i")
    for level, what, data in beside:
        if (level, what) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    try:
        return decoded(_received(channel, None, MESSAGE_BYTES_MAX, begin), kind), list(descriptors)
    except ChannelError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def _received(channel: socket.socket, deadline_s: float | None, bytes_max: int, begin: bytes) -> bytearray:
    (size_bytes,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size, deadline_s, begin))
    if size_bytes > bytes_max:
        raise ChannelError(f"a message of {size_bytes} bytes, more than {bytes_max}")
    return _exactly(channel, size_bytes, deadline_s, b"")


def _exactly(channel: socket.socket, size_bytes: int, deadline_s: float | None, begin: bytes) -> bytearray:
    data = bytearray(begin)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    while len(data) < size_bytes:
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        if not poll.poll(None if left_s is None else left_s * 1000):
            raise ChannelError("no answer in time")
        try:
            part = channel.recv(min(size_bytes - len(data), 1 << 20))
        except OSError as error:
            raise ChannelError(str(error)) from error
        if not part:
            raise ChannelError("it has ended")
        data += part
    return data


def decoded(data: bytearray, kind: type[T]) -> T:
    """The message in these bytes. Raises ChannelError."""
    try:
        message: Any = msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ChannelError(f"no message: {error}") from error
    return message  # type: ignore[no-any-return]


def message_extent(data: bytearray, bytes_max: int) -> tuple[int, int] | None:
    """The extent of the first message; None if it is incomplete.

    Raises ChannelError if it is longer than `bytes_max`.
    """
    if len(data) < _LENGTH.size:
        return None
    (size_bytes,) = _LENGTH.unpack_from(data)
    if size_bytes > bytes_max:
        raise ChannelError(f"a message of {size_bytes} bytes, more than {bytes_max}")
    end = _LENGTH.size + size_bytes
    return (_LENGTH.size, end) if len(data) >= end else None
