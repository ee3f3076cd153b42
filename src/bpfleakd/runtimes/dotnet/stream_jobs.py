"""The helpers' jobs for event streams of .NET processes: they read them, and answer with their content.

The functions in JOBS run in an unprivileged process (sandbox/zygote.py) that ends with the stream. They
receive the open connection of a session; the structs are their answers.

- `rundown` reads the list of methods that ends a session.
- `collections` and `allocations` follow a session that stays open, until nobody listens.
- `heap_types` sums the objects of the heap by type.
"""

from __future__ import annotations

import codecs
import os
import select
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, TypeVar

import msgspec

from bpfleakd.runtimes.dotnet import events
from bpfleakd.runtimes.dotnet.event_order import HELD_S, EventOrder
from bpfleakd.runtimes.dotnet.heap_walk import HeapWalk
from bpfleakd.runtimes.dotnet.nettrace import BadNettrace, Event, NettraceReader
from bpfleakd.runtimes.dotnet.rundown import parse_rundown
from bpfleakd.runtimes.dotnet.survivors import SampledSurvivors
from bpfleakd.sandbox.orders import Answers

JOBS = ("rundown", "collections", "allocations", "heap_types")
RUNDOWN_JOB, COLLECTIONS_JOB, ALLOCATIONS_JOB, HEAP_TYPES_JOB = (f"{__name__}:{job}" for job in JOBS)

# 10,000 methods are 1.2 MB.
RUNDOWN_LIMIT_BYTES = 64 << 20
_HEAP_LIMIT_BYTES = 4 << 30
_READ_BYTES = 1 << 20
# Between two readings of an open session: bounds the work that a process can cause.
_PAUSE_S = 0.25
_SUMMARY_PAUSE_S = 1.0
# Per reading: nobody collects this often, but a process may claim so.
_COLLECTIONS_MAX = 64
ROWS_AT_A_TIME = 1_000
_RETAINED_MAX = 500
_STACK_MAX = 128
_TEXT_MAX = 4_096

T = TypeVar("T")
Number = Annotated[int, msgspec.Meta(ge=0, le=0x7FFF_FFFF_FFFF_FFFF)]
Text = Annotated[str, msgspec.Meta(max_length=_TEXT_MAX)]


class CodePart(msgspec.Struct, frozen=True, array_like=True):
    """A method with native code; `il_map` are pairs of u32 (native offset, IL offset), by native offset."""

    id: Annotated[int, msgspec.Meta(ge=0)]
    module_id: Annotated[int, msgspec.Meta(ge=0)]
    start: Number
    size_bytes: Number
    token: Number
    namespace: Text
    name: Text
    is_jitted: bool
    il_map: bytes


class RundownPart(msgspec.Struct, frozen=True, tag=True):
    """Some of the methods; the last part has the modules, by id, and the number of methods left out."""

    code: tuple[CodePart, ...] = ()
    modules: tuple[tuple[Annotated[int, msgspec.Meta(ge=0)], Text], ...] = ()
    left_out: Number = 0
    is_last: bool = False


class Collection(msgspec.Struct, frozen=True, array_like=True):
    """A collection at a CLOCK_MONOTONIC time, with its events.HeapStats."""

    at_ns: Number
    heap_bytes: Number
    live_bytes: Number
    least_bytes: Number | None
    is_full: bool


class Collected(msgspec.Struct, frozen=True, tag=True):
    """The collections since the last answer, and the size of their events."""

    collections: tuple[Collection, ...]
    read_bytes: Number


class RetainedRow(msgspec.Struct, frozen=True, array_like=True):
    """runtime.Retained by samples."""

    type: Text
    stack: Annotated[tuple[Number, ...], msgspec.Meta(max_length=_STACK_MAX)]
    live_bytes: Number
    samples: Number
    growth_bytes_per_s: float
    is_proven: bool


class Allocated(msgspec.Struct, frozen=True, tag=True):
    """The results of the session's samples so far, the largest first."""

    collections: Number
    proofs: Number
    ticks: Number
    retained: tuple[RetainedRow, ...]


class CountedTypes(msgspec.Struct, frozen=True, tag=True):
    """Sums of some types (name, bytes, count), and names of types by id that were not known."""

    sums: tuple[tuple[Text, Number, Number], ...] = ()
    names: tuple[tuple[Annotated[int, msgspec.Meta(ge=0)], Text], ...] = ()
    is_last: bool = False


def prepare() -> None:
    """Import modules that are loaded at first use, while files can still be opened."""
    codecs.lookup("utf-16-le")
    SampledSurvivors().retained()


def rundown(files: Sequence[int], _arguments: object, answer: Answers) -> None:
    """Answer the methods of a process in parts. Raises BadNettrace."""
    found = parse_rundown(b"".join(_to_end(files[0], RUNDOWN_LIMIT_BYTES)))
    for codes in _batches(found.code):
        answer(RundownPart(tuple(_part(code.method, code.il_map) for code in codes)))
    modules = tuple((number, path[:_TEXT_MAX]) for number, path in found.modules.items())
    answer(RundownPart((), modules, found.left_out, is_last=True))


class SeenCollections:
    """Identifies background collections, which end after others that began later."""

    def __init__(self) -> None:
        # The last blocking one; a collection whose beginning was not seen may be in the background.
        self._blocking: int | None = None
        self._is_background = True

    def take(self, new: Iterable[Event]) -> list[Collection]:
        """The collections in these events."""
        found = []
        for event in new:
            if event.number == events.GC_START:
                number, _depth, kind = events.gc_start(event)
                if kind != events.BACKGROUND:
                    self._blocking = number
            elif event.number == events.GC_END:
                self._is_background = events.gc_end(event)[0] != self._blocking
            elif event.number == events.GC_HEAP_STATS:
                stats = events.heap_stats(event, is_background=self._is_background)
                least_bytes = None if stats.least_bytes is None else _number(stats.least_bytes)
                found.append(
                    Collection(
                        _number(event.time_ns),
                        _number(stats.heap_bytes),
                        _number(stats.live_bytes),
                        least_bytes,
                        stats.is_full,
                    )
                )
        return found


def collections(files: Sequence[int], _arguments: object, answer: Answers) -> None:
    """Answer each collection. Raises BadNettrace."""
    known = SeenCollections()
    for read_bytes, new, _is_last in _followed(files[0], answer):
        found = known.take(new)
        answer(Collected(tuple(found[-_COLLECTIONS_MAX:]), read_bytes))


def allocations(files: Sequence[int], _arguments: object, answer: Answers) -> None:
    """Answer with the allocators of retained objects, once a second at most. Raises BadNettrace."""
    survivors = SampledSurvivors()
    answered_s = 0.0
    for _read_bytes, new, is_last in _followed(files[0], answer, _SUMMARY_PAUSE_S):
        survivors.take(new)
        if is_last or time.monotonic() - answered_s >= _SUMMARY_PAUSE_S:
            retained = tuple(
                RetainedRow(
                    one.type[:_TEXT_MAX],
                    tuple(map(_number, one.stack[:_STACK_MAX])),
                    _number(one.live_bytes),
                    one.samples,
                    one.growth_bytes_per_s,
                    one.is_proven,
                )
                for one in survivors.retained()[:_RETAINED_MAX]
            )
            answer(Allocated(survivors.collections, survivors.proofs, survivors.ticks, retained))
            answered_s = time.monotonic()


def heap_types(files: Sequence[int], arguments: object, answer: Answers) -> None:
    """Answer the objects by type. `arguments` are known names of types, by id. Raises BadNettrace."""
    walk = HeapWalk(msgspec.convert(arguments, dict[int, str]))
    for data in _to_end(files[0], _HEAP_LIMIT_BYTES):
        walk.feed(data)
        if walk.is_done:
            break
    else:
        raise BadNettrace("it ends early")
    for rows in _batches(walk.sums()):
        answer(CountedTypes(tuple((name[:_TEXT_MAX], _number(a), _number(b)) for name, a, b in rows)))
    for names in _batches(list(walk.new_names.items())):
        answer(CountedTypes((), tuple((number, name[:_TEXT_MAX]) for number, name in names)))
    answer(CountedTypes(is_last=True))


def _part(method: events.LoadedMethod, il_map: Sequence[tuple[int, int]]) -> CodePart:
    packed = struct.pack(f"<{2 * len(il_map)}I", *(number for pair in il_map for number in pair))
    return CodePart(
        method.id,
        method.module_id,
        _number(method.start),
        method.size_bytes,
        method.token,
        method.namespace[:_TEXT_MAX],
        method.name[:_TEXT_MAX],
        method.is_jitted,
        packed,
    )


def _followed(
    session: int, answer: Answers, quiet_s: float | None = None
) -> Iterator[tuple[int, list[Event], bool]]:
    """Yield the events of a session, in order of time, until nobody listens.

    Yields the number of bytes read, the events, and whether that is all. Ends once nothing has arrived for
    `quiet_s`. Raises BadNettrace.
    """
    reader, order = NettraceReader(), EventOrder()
    both = select.poll()
    both.register(session, select.POLLIN)
    both.register(answer, 0)
    only_answer = select.poll()
    only_answer.register(answer, 0)
    while True:
        wait_s = HELD_S if order.is_holding else quiet_s
        ready = dict(both.poll(None if wait_s is None else 1000 * wait_s))
        if not ready:
            yield 0, order.rest(), False
            continue
        if answer.fileno() in ready:
            return
        data = _read(session)
        if not data:
            yield 0, order.rest(), True
            return
        yield len(data), order.take(_events(reader, data)), False
        if only_answer.poll(1000 * _PAUSE_S):
            return


def _events(reader: NettraceReader, data: bytes) -> list[Event]:
    try:
        return list(reader.feed(data))
    except struct.error as error:
        raise BadNettrace(f"an event is cut: {error}") from error


def _to_end(session: int, limit_bytes: int) -> Iterator[bytes]:
    """The rest of a stream. Raises BadNettrace if it is longer."""
    ready = select.poll()
    ready.register(session, select.POLLIN)
    taken = 0
    while True:
        ready.poll()
        data = _read(session)
        if not data:
            return
        taken += len(data)
        if taken > limit_bytes:
            raise BadNettrace(f"it is longer than {limit_bytes >> 20} MiB")
        yield data


def _read(session: int) -> bytes:
    """The available data; b"" at the end, also if the other end is gone."""
    parts: list[bytes] = []
    taken = 0
    while taken < _READ_BYTES:
        try:
            part = os.read(session, _READ_BYTES - taken)
        except BlockingIOError:
            break
        except OSError:
            part = b""
        if not part:
            break
        parts.append(part)
        taken += len(part)
    return b"".join(parts)


def _number(value: int) -> int:
    """A number that fits an answer's struct: the stream may contain any."""
    return min(max(value, 0), 0x7FFF_FFFF_FFFF_FFFF)


def _batches(rows: Sequence[T]) -> Iterable[Sequence[T]]:
    for at in range(0, len(rows), ROWS_AT_A_TIME):
        yield rows[at : at + ROWS_AT_A_TIME]
