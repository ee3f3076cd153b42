"""Messages: whatever bytes the other end sends, they are a message of the right type or the end of it."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpfleakd.sandbox.channel import ChannelError, receive, receive_with_descriptors, send
from bpfleakd.sandbox.orders import Failure, Order

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
ENCODED = VALUES.map(msgspec.msgpack.encode).map(lambda data: struct.pack("=I", len(data)) + data)


def sent(data: bytes) -> socket.socket:
    """The end of a channel on which these bytes have come, and no more will."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data)
    return ours


@given(st.binary(max_size=200) | ENCODED, st.sampled_from([Order, Failure, str, list[int]]))
def test_any_bytes(data: bytes, kind: type):
    """No other error comes out, and no value of another type."""
    with sent(data) as channel, contextlib.suppress(ChannelError):
        value = receive(channel, kind, deadline_s=time.monotonic() + 10, bytes_max=1_000)
        assert msgspec.convert(msgspec.to_builtins(value), kind) == value


@given(st.binary(max_size=100) | ENCODED)
def test_any_bytes_with_descriptors(data: bytes):
    """Descriptors that came with an invalid message are closed."""
    before = len(os.listdir("/proc/self/fd"))
    ours, theirs = socket.socketpair()
    with ours, open("/dev/null") as file:
        with theirs:
            socket.send_fds(theirs, [data or b"\0"], [file.fileno()])
        with contextlib.suppress(ChannelError):
            _order, descriptors = receive_with_descriptors(ours, Order)
            for descriptor in descriptors:
                os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == before


@given(VALUES)
def test_what_is_sent_arrives(value: Any):
    """As MessagePack encodes it: a number beyond 64 bits is not sent at all."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            send(theirs, value)
        except OverflowError:
            return
        assert receive(ours, Any, deadline_s=time.monotonic() + 10) == value


@pytest.mark.parametrize("size_bytes", [1_001, 0xFFFFFFFF])
def test_a_message_that_is_too_long(size_bytes: int):
    """The reader does not wait for it, and allocates no memory for it."""
    with (
        sent(struct.pack("=I", size_bytes) + b"x" * 100) as channel,
        pytest.raises(ChannelError, match="more"),
    ):
        receive(channel, Any, deadline_s=time.monotonic() + 10, bytes_max=1_000)
