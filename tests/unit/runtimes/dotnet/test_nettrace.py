"""Streams in the nettrace format."""

from __future__ import annotations

import random

import pytest

from bpfleakd.runtimes.dotnet.nettrace import BadNettrace, Event, NettraceReader
from bpfleakd.runtimes.dotnet.rundown import parse_rundown

from .streams import RUNDOWN, RUNTIME, StreamWriter, WrittenEvent, il_map, method, module

EVENTS = (
    WrittenEvent(RUNTIME, 4, b"stats" * 40, 1, time_ns=5, stack=(0x7F00_0000_1000, 0x10)),
    WrittenEvent(RUNTIME, 10, b"", 3, time_ns=7),
    WrittenEvent(RUNTIME, 4, b"other", 1, time_ns=1 << 62, stack=(0x20,)),
)


def read(data: bytes) -> list[Event]:
    reader = NettraceReader()
    events = list(reader.feed(data))
    assert reader.is_ended
    return events


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_events_come_as_they_were_written(compressed: bool, piece: int) -> None:
    """Whatever the pieces that the stream arrives in."""
    writer = StreamWriter(compressed=compressed).events(EVENTS[:1]).unknown_block().events(EVENTS[1:])
    data = writer.sequence_point().events(EVENTS[:1]).end()
    reader = NettraceReader()
    found = [event for at in range(0, len(data), piece) for event in reader.feed(data[at : at + piece])]
    assert reader.is_ended
    assert [(e.provider, e.number, e.version, e.time_ns, e.stack, e.payload) for e in found] == [
        (e.provider, e.number, e.version, e.time_ns, e.stack, e.payload) for e in (*EVENTS, EVENTS[0])
    ]


def test_a_stack_from_before_a_sequence_point_is_lost() -> None:
    """Its number may be another stack's from there on; that it is missing is counted."""
    reader = NettraceReader()
    (event,) = reader.feed(StreamWriter().events(EVENTS[:1], point_after_stacks=True).end())
    assert (event.stack, reader.lost_stacks) == ((), 1)


def test_an_event_that_is_older_than_the_one_before() -> None:
    """Threads write apart: the difference is negative, modulo 2^64."""
    times_ns = (9_000, 5_000, (1 << 63) + 1, 7)
    events = [WrittenEvent(RUNTIME, 4, b"", time_ns=time_ns) for time_ns in times_ns]
    assert [event.time_ns for event in read(StreamWriter().events(events).end())] == list(times_ns)


@pytest.mark.parametrize(
    "data",
    [
        b"not a stream at all, but long enough to be one",
        StreamWriter().data + b"\x07garbage that is no object and no end",
        StreamWriter().data + b"\x05\x05\x01" + b"\xff" * 40,
    ],
)
def test_what_is_no_stream(data: bytes) -> None:
    """One error, and nothing else."""
    with pytest.raises(BadNettrace):
        list(NettraceReader().feed(data))


def test_a_block_without_end_is_not_waited_for() -> None:
    """A length that is too large ends the reading at once, not after gigabytes."""
    data = StreamWriter().events(EVENTS).end()
    at = data.rindex(b"EventBlock") + len("EventBlock") + 1
    with pytest.raises(BadNettrace):
        list(NettraceReader().feed(data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :]))


def test_damaged_streams_raise_nothing_else() -> None:
    """Any byte may be any other."""
    events = [module(7, "/srv/Shop.dll"), method("Shop.Program", "Main", 0x1000, 64), il_map(1, [(0, 0)])]
    whole = StreamWriter().events(events).events(EVENTS).end()
    source = random.Random(17)
    for _attempt in range(3_000):
        data = bytearray(whole)
        for _damage in range(source.randint(1, 4)):
            data[source.randrange(len(data))] = source.randrange(256)
        try:
            parse_rundown(bytes(data[: source.randint(1, len(data))]))
        except BadNettrace:
            continue


def test_a_rundown() -> None:
    """Methods with their modules; the map before a version of a method is that version's."""
    data = StreamWriter().events(
        [
            il_map(1, [(0, 0), (9, 30), (0xFFFF_FFFE, 60)]),
            method("Shop.Program", "Main", 0x1000, 64),
            il_map(1, [(5, 10), (0, 0)]),
            method("Shop.Program", "Main", 0x2000, 32),
            module(7, "/srv/Shop.dll"),
            WrittenEvent(RUNDOWN, 146, b"", 1),
        ]
    )
    found = parse_rundown(data.end())
    assert [(code.method.start, code.il_map) for code in found.code] == [
        (0x1000, ((0, 0), (30, 9))),
        (0x2000, ((0, 0), (10, 5))),
    ]
    assert found.modules == {7: "/srv/Shop.dll"}
