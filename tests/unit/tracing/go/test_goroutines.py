"""Goroutines that become ever more."""

from __future__ import annotations

from collections import Counter
from unittest import mock

from bpfleakd.model.code.method import Method
from bpfleakd.model.verdict import Verdict
from bpfleakd.runtimes.go.goroutines import GoroutineReading, StartPlace
from bpfleakd.tracing.go.goroutines import GoroutineWatch

from ..doubles import Clock

SERVE, WORKER = StartPlace(0x101, 0x200), StartPlace(0x102, 0x300)


class Program:
    """A program that serves, by goroutines of two kinds."""

    def __init__(self) -> None:
        self.states: dict[StartPlace, Counter[str]] = {WORKER: Counter({"select": 8})}
        self.reader = mock.Mock()
        self.reader.read.side_effect = self._read

    def goroutines(self) -> mock.Mock:
        return self.reader

    def _read(self) -> GoroutineReading:
        stacks = Counter({place: 8192 * states.total() for place, states in self.states.items()})
        return GoroutineReading({place: Counter(states) for place, states in self.states.items()}, stacks, 0)

    def method(self, address: int) -> Method:
        return {0x101: Method("main.serve", file="/src/server.go", line=41)}.get(address, Method("main.main"))

    def function_at(self, address: int) -> Method:
        return Method("main.handle" if address == 0x200 else "main.work")


def test_a_leak_of_goroutines() -> None:
    """How many more, where they were started, and what they wait for."""
    program, clock = Program(), Clock()
    watch = GoroutineWatch(program, clock.now_ns, 45.0, clock)
    watch.read(clock.now_ns)
    for second in range(1, 91):
        clock.go_on(1)
        program.states[SERVE] = Counter({"chan receive": 20 * second, "running": 1})
        watch.read(clock.now_ns)
    (leak,) = watch.leaks
    assert leak.verdict is Verdict.LEAK
    assert leak.function == "main.handle"
    assert leak.started_at == "/src/server.go:41"
    assert leak.states["chan receive"] == leak.count - 1
    assert leak.reason.startswith("goroutine leak: 1,")
    assert leak.reason.endswith("more in 1m00s, started at main.serve server.go:41, waiting on chan receive")
    workers = next(group for group in watch.groups() if group.function == "main.work")
    assert (workers.verdict is Verdict.LEAK, workers.count, workers.grown_count) == (False, 8, 0)
    assert watch.groups()[0] == leak


def test_a_pool_that_was_filled_before_is_none() -> None:
    """Those from before the attach are not growth, and a constant number is not a leak."""
    program, clock = Program(), Clock()
    program.states[SERVE] = Counter({"IO wait": 5000})
    watch = GoroutineWatch(program, clock.now_ns, 45.0, clock)
    for _ in range(90):
        watch.read(clock.now_ns)
        clock.go_on(1)
    assert watch.leaks == ()
    assert {group.count for group in watch.groups()} == {5000, 8}


def test_many_that_are_counted_seldom() -> None:
    """By what counting costs the processor; growth is that since the reading before, if that was long ago."""
    program, clock, spent = Program(), Clock(), Clock()
    watch = GoroutineWatch(program, clock.now_ns, 45.0, clock, spent)
    began_ns = clock.now_ns

    def read() -> GoroutineReading:
        spent.go_on(0.8)
        seconds = (clock.now_ns - began_ns) // 1_000_000_000
        program.states[SERVE] = Counter({"chan send": 100 + 20 * seconds})
        return program._read()

    program.reader.read.side_effect = read
    for _ in range(401):
        watch.read(clock.now_ns)
        clock.go_on(1)
    assert program.reader.read.call_count == 6
    (leak,) = watch.leaks
    assert (leak.grown_count, leak.grown_in_s) == (1600, 80.0)
    assert leak.reason.startswith("goroutine leak: 1,600 more in 1m20s, ")


def test_a_reading_that_waits_for_a_processor_costs_nothing() -> None:
    """The next is as near as ever."""
    program, clock, spent = Program(), Clock(), Clock()
    watch = GoroutineWatch(program, clock.now_ns, 45.0, clock, spent)

    def read() -> GoroutineReading:
        clock.go_on(2)
        return program._read()

    program.reader.read.side_effect = read
    for _ in range(4):
        watch.read(clock.now_ns)
        clock.go_on(5)
    assert program.reader.read.call_count == 4


def test_they_are_counted_every_five_seconds() -> None:
    """And not when nothing can be read."""
    program, clock = Program(), Clock()
    watch = GoroutineWatch(program, clock.now_ns, 45.0, clock)
    for _ in range(11):
        watch.read(clock.now_ns)
        clock.go_on(1)
    assert program.reader.read.call_count == 3
    program.reader.read.side_effect = None
    program.reader.read.return_value = None
    clock.go_on(10)
    watch.read(clock.now_ns)
    assert [group.count for group in watch.groups()] == [8]
