"""Sessions that stay open, against a small runtime on a real socket."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bpfleakd.process.files.rooted_open import TargetRoot
from bpfleakd.runtimes.dotnet.allocations import DotnetAllocations
from bpfleakd.runtimes.dotnet.diagnostics import DiagnosticsError, Endpoint
from bpfleakd.runtimes.dotnet.live_heap import DotnetLiveHeap
from bpfleakd.runtimes.runtime import LiveHeap

from ...helping import helpers
from ...waiting import until
from .fake_runtime import FakeRuntime
from .streams import RUNTIME, StreamWriter, WrittenEvent, text

S = 1_000_000_000


def joined(name: str = "dotnet-events") -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


def stats(
    promoted: tuple[int, int, int, int],
    sizes: tuple[int, int, int, int],
    version: int,
    pinned: tuple[int, int] = (1_000, 500),
) -> WrittenEvent:
    pairs = [number for pair in zip(sizes, promoted, strict=True) for number in pair]
    payload = struct.pack("<10QIIIH", *pairs, 0, 0, 0, 0, 0, 8)
    if version == 2:
        payload += struct.pack("<QQ", *pinned)
    return WrittenEvent(RUNTIME, 4, payload, version, time_ns=7 * S)


def starts(number: int, depth: int, kind: int = 0) -> WrittenEvent:
    """A collection; `kind` 1 in the background, 2 while there is such a one."""
    return WrittenEvent(RUNTIME, 1, struct.pack("<IIIIHQ", number, depth, 0, kind, 8, 0), 2, time_ns=7 * S)


def ends(number: int, depth: int) -> WrittenEvent:
    return WrittenEvent(RUNTIME, 2, struct.pack("<IIH", number, depth, 8), 1, time_ns=7 * S)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Callable[..., FakeRuntime]]:
    started: list[FakeRuntime] = []

    def start(**options: object) -> FakeRuntime:
        started.append(FakeRuntime(tmp_path / "socket", **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def endpoint(tmp_path: Path) -> Callable[[], Endpoint]:
    return lambda: Endpoint(TargetRoot(os.getpid(), Path("/")), str(tmp_path / "socket"))


@pytest.mark.parametrize(("version", "pinned"), [(1, (0, 0)), (2, (1_000, 500))])
def test_what_collections_leave_alive(
    runtime: Callable[..., FakeRuntime],
    endpoint: Callable[[], Endpoint],
    version: int,
    pinned: tuple[int, int],
) -> None:
    """At most the size of all generations after a young collection, exactly the survivors after a full one.
    """
    stream = StreamWriter()
    begin = stream.data
    stream.events([starts(4, 1), ends(4, 1), stats((5, 6, 0, 0), (10, 20, 3_000, 400), version)])
    stream.events([starts(5, 2), ends(5, 2), stats((5, 6, 2_000, 300), (10, 20, 3_000, 400), version)])
    # Live bytes of pinned objects are not filled in.
    stream.events([stats((5, 6, 2_000, 300), (10, 20, 3_000, 400), version, (1_000, 0))])
    fake = runtime(begin=begin)
    heap = DotnetLiveHeap(helpers(), endpoint, 3 * S)
    assert (heap.read(2 * S), heap.watched_since_ns) == ([], None)
    heap.read(3 * S)
    joined()
    heap.read(4 * S)
    assert heap.watched_since_ns == 4 * S
    until(lambda: fake.has_session(1))
    fake.send(1, stream.data[len(begin) :])
    found: list[LiveHeap] = []
    until(lambda: bool(found.extend(heap.read(5 * S)) or len(found) >= 3))
    assert found == [
        LiveHeap(7 * S, 3_430 + pinned[0], 1, False),
        LiveHeap(7 * S, 2_311 + pinned[1], 2, True),
        LiveHeap(7 * S, 2_311 + pinned[0], 3, True),
    ]
    heap.close()
    ((command, payload),) = fake.received
    assert command == 3
    assert struct.unpack_from("<QI", payload, 13) == (1, 4)


def test_what_background_collections_leave_alive(
    runtime: Callable[..., FakeRuntime], endpoint: Callable[[], Endpoint]
) -> None:
    """For generations 0 and 1 they give the sizes before the collection: objects in generation 1 may be alive
    or not.
    """
    stream = StreamWriter()
    begin = stream.data
    stream.events([ends(3, 2), stats((105, 0, 0, 112), (6_980, 501, 0, 291), 1)])
    stream.events([starts(4, 2, kind=1), starts(5, 0, kind=2), ends(5, 0)])
    stream.events([stats((84, 0, 0, 0), (0, 171, 565, 337), 1), ends(4, 2)])
    stream.events([stats((84, 16, 304, 108), (3, 171, 565, 337), 1)])
    stream.events([starts(6, 2), ends(6, 2), stats((84, 16, 305, 108), (0, 84, 321, 108), 1)])
    fake = runtime(begin=begin)
    heap = DotnetLiveHeap(helpers(), endpoint, 0)
    heap.read(S)
    joined()
    heap.read(S)
    until(lambda: fake.has_session(1))
    fake.send(1, stream.data[len(begin) :])
    found: list[LiveHeap] = []
    until(lambda: bool(found.extend(heap.read(5 * S)) or len(found) >= 4))
    assert found == [
        LiveHeap(7 * S, 112 + 501, 1, True, 112 + 105),
        LiveHeap(7 * S, 171 + 565 + 337, 2, False),
        LiveHeap(7 * S, 304 + 108 + 171, 3, True, 304 + 108 + 84),
        LiveHeap(7 * S, 84 + 16 + 305 + 108, 4, True),
    ]
    assert heap.last_bytes == 84 + 321 + 108
    heap.close()


def test_a_stream_that_ends_is_begun_again(
    runtime: Callable[..., FakeRuntime], endpoint: Callable[[], Endpoint]
) -> None:
    """Several times, each after a pause; then it is given up, with the reason."""
    fake = runtime(begin=b"no stream")
    heap = DotnetLiveHeap(helpers(), endpoint, 0)
    seconds = iter(range(1_000_000))

    def has_failed() -> bool:
        heap.read(next(seconds) * S)
        joined()
        return heap.failure is not None

    until(has_failed)
    for _ in range(300):
        assert has_failed()
    assert len(fake.received) == 1
    assert "cannot be read" in str(heap.failure)
    heap.close()


def test_no_socket(tmp_path: Path) -> None:
    def none() -> Endpoint:
        raise DiagnosticsError("it has no diagnostics socket")

    heap = DotnetLiveHeap(helpers(), none, 0)
    for second in range(300):
        heap.read(second * S)
        joined()
    assert heap.failure == "it has no diagnostics socket"


def test_allocations_are_sampled_while_somebody_wants_to_know(
    runtime: Callable[..., FakeRuntime], endpoint: Callable[[], Endpoint]
) -> None:
    """No session before, none afterwards."""
    fake = runtime(begin=StreamWriter().data)
    allocations = DotnetAllocations(helpers(), endpoint)
    for second in range(20):
        allocations.refresh(second * S)
    joined()
    assert fake.received == []
    allocations.want(wanted=True)
    for second in range(20, 100):
        allocations.refresh(second * S)
        joined()
    assert [command for command, _payload in fake.received] == [3]
    allocations.want(wanted=False)
    for second in range(100, 200):
        allocations.refresh(second * S)
        joined()
    assert len(fake.received) == 1
    assert allocations.retained() == []
    allocations.close()


def tick(address: int, time_ns: int) -> WrittenEvent:
    payload = struct.pack("<IIHQQ", 0, 0, 8, 100_000, 0x42) + text("Order") + struct.pack("<IQ", 0, address)
    return WrittenEvent(RUNTIME, 10, payload, 3, time_ns, (0x100, 0x900))


def full_collection(number: int, address: int, time_ns: int) -> list[WrittenEvent]:
    survives = struct.pack("<IIHQQ", 0, 1, 8, address, 0x40)
    return [
        WrittenEvent(RUNTIME, 1, struct.pack("<IIIIHQ", number, 2, 0, 0, 8, 0), 2, time_ns),
        WrittenEvent(RUNTIME, 21, survives, 0, time_ns + 1),
        WrittenEvent(RUNTIME, 2, struct.pack("<IIH", number, 2, 8), 1, time_ns + 2),
    ]


def test_results_of_a_window_that_ended_say_how_old_they_are(
    runtime: Callable[..., FakeRuntime], endpoint: Callable[[], Endpoint]
) -> None:
    """Nobody looks any more whether what stayed then is still alive."""
    written = [tick(0x1000, S)]
    for number in range(1, 4):
        written += full_collection(number, 0x1000, (10 + number) * S)
    runtime(begin=StreamWriter().events(written).data)
    allocations = DotnetAllocations(helpers(), endpoint)
    allocations.want(wanted=True)

    def has_results() -> bool:
        allocations.refresh(S)
        joined()
        return bool(allocations.retained())

    until(has_results)
    (one,) = allocations.retained()
    assert (one.type, one.live_bytes, one.is_proven, one.age_s) == ("Order", 100_000, True, 0)
    allocations.want(wanted=False)
    for second in range(2, 200):
        allocations.refresh(second * S)
    (later,) = allocations.retained()
    assert later.live_bytes == one.live_bytes
    assert 100 < later.age_s < 200
    # The next window has seen nothing yet: the results before it grow older.
    allocations.want(wanted=True)
    for second in range(200, 230):
        allocations.refresh(second * S)
    (latest,) = allocations.retained()
    assert latest.age_s == later.age_s + 30
    allocations.close()
