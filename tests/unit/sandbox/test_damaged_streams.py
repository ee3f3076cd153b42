"""Damaged event streams of .NET in the daemon's own helpers: answers of the right kind, or the end of it."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.runtimes.dotnet.stream_jobs import (
    ALLOCATIONS_JOB,
    COLLECTIONS_JOB,
    HEAP_TYPES_JOB,
    RUNDOWN_JOB,
    Allocated,
    Collected,
    CountedTypes,
    RundownPart,
)
from bpfleakd.sandbox.channel import HelperFailed

from ..helping import helpers
from ..runtimes.dotnet.streams import RUNTIME, StreamWriter, WrittenEvent, il_map, method, module, text
from ..waiting import until

TYPE = struct.pack("<QQIIB", 77, 1, 0, 0, 0) + text("Shop.Order") + struct.pack("<I", 0)
EVENTS = [
    module(7, "/srv/Shop.dll"),
    il_map(1, [(0, 0), (9, 30)]),
    method("Shop.Program", "Main", 0x1000, 64),
    WrittenEvent(RUNTIME, 1, struct.pack("<IIIIHQ", 1, 2, 0, 0, 8, 0), 2),
    WrittenEvent(RUNTIME, 4, struct.pack("<10QIIIH", *range(10), 0, 0, 0, 8), 1, time_ns=7),
    WrittenEvent(RUNTIME, 10, struct.pack("<IIHQQ", 0, 0, 8, 1 << 17, 0) + text("Shop.Order") + bytes(20), 3),
    WrittenEvent(RUNTIME, 15, struct.pack("<IH", 1, 8) + TYPE, 0),
    WrittenEvent(RUNTIME, 18, struct.pack("<IIH", 0, 2, 8) + struct.pack("<4Q", 8, 24, 77, 0) * 2, 0),
    WrittenEvent(RUNTIME, 21, struct.pack("<IIHQQ", 0, 1, 8, 0, 1 << 40), 0, time_ns=8),
    WrittenEvent(RUNTIME, 2, struct.pack("<IIH", 1, 2, 8), 1, stack=(1, 2), time_ns=9),
]
WHOLE = StreamWriter().events(EVENTS[:5]).events(EVENTS[5:]).end()
DAMAGES = st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4)


def stream_of(data: bytes) -> socket.socket:
    """The end of a connection on which these bytes have come, and no more will."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(data)
    ours.setblocking(False)
    return ours


def answers(job: str, answer_type: Any, data: bytes, arguments: object = None) -> list[Any]:
    """A helper's answer for a stream. Raises HelperFailed."""
    with stream_of(data) as stream:
        files = [stream.fileno()]
        return list(helpers().answers(job, arguments, files, answer_type, limit_s=20, answers_max=100))


def test_whole_streams():
    """Each job answers with the contents of one, and ends with it."""
    *parts, last = answers(RUNDOWN_JOB, RundownPart, WHOLE)
    ((code,),) = [part.code for part in parts]
    assert (code.name, code.start, code.il_map) == ("Main", 0x1000, struct.pack("<4I", 0, 0, 30, 9))
    assert last.modules == ((7, "/srv/Shop.dll"),)
    *_before, collected = answers(COLLECTIONS_JOB, Collected, WHOLE)
    # Its end has not been told before, so that it may be in the background.
    found = [(one.at_ns, one.heap_bytes, one.live_bytes) for one in collected.collections]
    assert found == [(7, 0 + 2 + 4 + 6, 2 + 5 + 7)]
    *_before, allocated = answers(ALLOCATIONS_JOB, Allocated, WHOLE)
    assert (allocated.collections, allocated.ticks) == (1, 1)
    sums, names, last = answers(HEAP_TYPES_JOB, CountedTypes, WHOLE, {})
    assert (sums.sums, names.names) == ((("Shop.Order", 48, 2),), ((77, "Shop.Order"),))
    assert last.is_last


@settings(max_examples=40)
@given(DAMAGES, st.integers(0, len(WHOLE)), st.sampled_from([RUNDOWN_JOB, COLLECTIONS_JOB, ALLOCATIONS_JOB]))
def test_damaged_streams(damages: list[tuple[int, int]], length: int, job: str):
    """Whatever comes, answers keep to their limits."""
    data = bytearray(WHOLE)
    for place, value in damages:
        data[place] = value
    kinds = {RUNDOWN_JOB: RundownPart, COLLECTIONS_JOB: Collected, ALLOCATIONS_JOB: Allocated}
    with contextlib.suppress(HelperFailed):
        answers(job, kinds[job], bytes(data[:length]))
    with contextlib.suppress(HelperFailed):
        answers(HEAP_TYPES_JOB, CountedTypes, bytes(data[:length]), {77: "Shop.Order"})


def test_a_stream_that_goes_on_is_followed_until_nobody_listens():
    """Answers come as the events do; the session is closed with the answers."""
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.setblocking(False)
            followed = helpers().follow(COLLECTIONS_JOB, None, [ours.fileno()], Collected, cpu_s=60)
        writer = StreamWriter().events(EVENTS[3:5])
        theirs.sendall(writer.data)
        found: list[Collected] = []
        until(lambda: found.extend(followed.read()) or any(one.collections for one in found))
        assert sum(len(one.collections) for one in found) == 1
        sent = len(writer.data)
        theirs.sendall(writer.events(EVENTS[4:5]).data[sent:])
        until(lambda: found.extend(followed.read()) or sum(len(one.collections) for one in found) > 1)

        followed.close()

        theirs.settimeout(60)
        assert theirs.recv(1) == b""


def test_one_that_cannot_be_read():
    """The reason comes instead of an answer."""
    with stream_of(b"no stream, and long enough to see that") as stream:
        followed = helpers().follow(COLLECTIONS_JOB, None, [stream.fileno()], Collected, cpu_s=60)

    def refused() -> str | None:
        try:
            followed.read()
        except HelperFailed as error:
            return str(error)
        return None

    with contextlib.closing(followed):
        assert "it does not begin as a nettrace stream" in until(refused)


@pytest.mark.parametrize(("job", "kind"), [(RUNDOWN_JOB, RundownPart), (HEAP_TYPES_JOB, CountedTypes)])
def test_one_that_never_ends(job: str, kind: type):
    """It is abandoned after its timeout: there is no last part."""
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.suppress(HelperFailed):
        ours.setblocking(False)
        assert list(helpers().answers(job, {}, [ours.fileno()], kind, limit_s=0.3)) == []
