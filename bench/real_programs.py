"""Released programs under load: how much of their speed is left, and whether a leak is found.

Each way of tracing is compared with none: two processes of the program run side by side, one of them traced.
They take turns under load: untraced, traced, traced, untraced. So whatever slows the machine for longer than
a turn slows both alike. The program has one processor core, its load generator another. The load begins when
the daemon has finished attaching: the figures are of the half minute after that, in which it reads most often
(`settled` measures what follows). Each turn has new processes, since two of the same program differ by a
percent for as long as they run: their addresses and hashes are random.

A second of a virtual machine differs from the next by ten percent and more. The sampler inside costs less. So
both processes are also under load at once, on the same cores: what they do per processor time is compared.
That excludes the daemon's own time, which is measured beside it. p99 is compared in units of the mean.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import launchers, twins
from bench.answers import place_in_heaptrack, place_in_memleak, place_in_report, place_in_valgrind
from bench.figures import Benchmark, Panel, Plot, Series, Table, with_middle
from bench.launchers import Launcher
from bench.loads import PROGRAMS, Load, Program, Running
from bench.peers import NotHere, memleak
from bench.runner import run_alone
from bench.tracing import RunningDaemon
from bpfleakd.errors import BpfleakdError
from bpfleakd.model.process import TracingMode

# Of the way that costs less than one turn differs from the next.
_INSIDE_TURNS, _INSIDE_LOADS, _LOADS_AT_ONCE = 5, 3, 3
# A just-in-time compiler is busy at first.
_LOAD_S, _WARM_UP_S = 1.0, 2.0
# memleak prints every 5 seconds.
_REPORT_TIMEOUT_S = 8.0

_NOTHING, _EXACT, _SAMPLED, _INSIDE, _MEMLEAK, _HEAPTRACK, _VALGRIND = (
    "nothing attached",
    "bpfleakd, exact",
    "bpfleakd, sampled",
    "bpfleakd, inside",
    "memleak",
    "heaptrack",
    "valgrind (memcheck)",
)

# Of the first leak in the tool's list.
_Place = Callable[[Sequence[str]], int | None]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a program is traced: started under a tool, with the tool attached, or neither.

    `attach` yields a function that returns the rank of a leak in the tool's answer; `read` finds the rank
    in the files that the tool left in the directory at the program's end. A turn has `loads` without, twice
    as many traced, and as many without. Between the traced ones there are `at_once` loads of both.
    """

    name: str
    attach: Callable[[Running, Path], contextlib.AbstractContextManager[_Place]] | None = None
    launch: Callable[[Path], Launcher] = lambda _directory: Launcher()
    read: Callable[[Path, Sequence[str]], int | None] | None = None
    turns: int = 2
    loads: int = 1
    at_once: int = 0
    tool_cpu_ns: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True)
class _Turn:
    """What loads without tracing and as many traced came to.

    `at_once` is of loads of both at the same time.
    """

    without: list[Load]
    traced: list[Load]
    at_once: list[twins.AtOnce] = field(default_factory=list)

    @property
    def kept(self) -> float:
        """Of the throughput."""
        if self.at_once:
            return statistics.median(one.kept for one in self.at_once)
        return sum(load.per_s for load in self.traced) / sum(load.per_s for load in self.without)

    @property
    def p99_ratio(self) -> float | None:
        """See twins.p99_ratio."""
        return twins.p99_ratio(self.traced, self.without, self.kept)


def measure(short: bool) -> Benchmark:
    """Measure every program in every way."""
    benchmark = Benchmark("real_programs", "Real programs", short)
    with RunningDaemon() as daemon, twins.private_libraries() as libraries:
        ways = _ways(daemon)
        found = {program.name: _Found(program) for program in PROGRAMS}
        for number, program in enumerate(PROGRAMS):
            # With --short, two ways for each program.
            for way in (ways[0], ways[1 + number % (len(ways) - 1)]) if short else ways:
                found[program.name].take(way, libraries, short=short)
    _report(benchmark, list(found.values()), [way.name for way in ways])
    return benchmark


def _report(benchmark: Benchmark, found: list[_Found], ways: list[str]) -> None:
    for one in found:
        one.report(benchmark)
    benchmark.tables.append(_table(found, [_NOTHING, *ways]))
    _plot(benchmark, ways)
    benchmark.notes.append(
        "A library that is preloaded leaks 1,000 bytes in every twentieth call that reads or writes; the"
        " OpenJDK program leaks through JNI and through Unsafe. The answer is the place of a function that"
        " leaks in the tool's list, some seconds after it was attached, or at the program's end; the compiler"
        " has no leak, since it frees hardly anything. A second of the compiler's is one of its processor"
        " time. p99 is what 99 of 100 requests took at most. Program and load generator have a core each,"
        " which they share with the tool. The middle half of the turns is in parentheses. What is left with"
        " bpfleakd inside is of the work per processor time, by both processes under load at once; the"
        " daemon's time comes on top."
    )


class _Found:
    """The measurements of one program, by way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.turns: dict[str, list[_Turn]] = defaultdict(list)
        self.places: dict[str, int | None] = {}
        self.missing: dict[str, str] = {}

    def take(self, way: _Way, libraries: Path, *, short: bool) -> None:
        """All turns of one way, and its answer."""
        if way.name in self.program.not_under:
            self.missing[way.name] = self.program.not_under[way.name]
            return
        try:
            with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
                turns, place = _run(self.program, way, libraries, Path(directory), short=short)
        except NotHere as reason:
            self.missing[way.name] = str(reason)
            return
        self.turns[way.name] = turns
        if self.program.leaks:
            self.places[way.name] = place

    def report(self, benchmark: Benchmark) -> None:
        """Add its figures, and the reasons for missing ones."""
        for way, loads in {_NOTHING: self._without(), **self._traced()}.items():
            of = f"{self.program.name}: {way}"
            benchmark.add(f"{of}: {self.program.unit} a second", "/s", [load.per_s for load in loads])
            p99s = [load.p99_ms for load in loads if load.p99_ms is not None]
            if p99s:
                benchmark.add(f"{of}: p99", "ms", p99s)
            if way != _NOTHING:
                benchmark.add(_kept(self.program.name, way), "", self._kept(way))
        self._demand(benchmark)
        for way, reason in self.missing.items():
            benchmark.notes.append(f"{self.program.name}, {way}: not measured: {reason}.")

    def cells(self, way: str) -> str:
        """The results, for a table."""
        loads = self._without() if way == _NOTHING else self._traced().get(way)
        if not loads:
            return "not measured"
        parts = []
        if way == _NOTHING:
            parts.append(f"{statistics.median(load.per_s for load in loads):,.4g}/s")
        else:
            parts.append(with_middle(self._kept(way)))
        p99s = [load.p99_ms for load in loads if load.p99_ms is not None]
        if p99s:
            parts.append(f"p99 {statistics.median(p99s):.3g} ms")
        if way in self.places:
            place = self.places[way]
            parts.append("does not name it" if place is None else f"names it: no. {place}")
        return "; ".join(parts)

    def _without(self) -> list[Load]:
        return [load for turns in self.turns.values() for turn in turns for load in turn.without]

    def _traced(self) -> dict[str, list[Load]]:
        return {way: [load for turn in turns for load in turn.traced] for way, turns in self.turns.items()}

    def _kept(self, way: str) -> list[float]:
        return [turn.kept for turn in self.turns[way]]

    def _demand(self, benchmark: Benchmark) -> None:
        """What the sampler inside may cost."""
        turns = self.turns[_INSIDE]
        if not turns:
            return
        tool = [one.tool for turn in turns for one in turn.at_once]
        ratios = [turn.p99_ratio for turn in turns]
        twins.report_inside(benchmark, f"{self.program.name}: {_INSIDE}", self._kept(_INSIDE), tool, ratios)


def _run(
    program: Program, way: _Way, libraries: Path, directory: Path, *, short: bool
) -> tuple[list[_Turn], int | None]:
    """The program in turns without and traced, and the rank of its leak."""
    without, traced = Launcher(), way.launch(directory)
    number, loads = (1, 1) if short else (way.turns, way.loads)
    place = None
    if program.once:
        return [_turn_of_runs(program, way, without, traced, libraries) for _ in range(number)], None
    turns = []
    for turn in range(number):
        with (
            twins.started(program, without, libraries) as other,
            twins.started(program, traced, libraries) as running,
        ):
            for one in (other, running):
                twins.loads(one, 1, _WARM_UP_S)
            before = twins.loads(other, loads, _LOAD_S)
            with _under(way, running, libraries / program.library) as place_of:
                during = twins.loads(running, loads, _LOAD_S)
                at_once = [
                    twins.load_at_once(other, running, _LOAD_S, way.tool_cpu_ns) for _ in range(way.at_once)
                ]
                during += twins.loads(running, loads, _LOAD_S)
                if way.attach and turn == number - 1 and program.leaks:
                    place = place_of(program.leaks)
            turns.append(_Turn(before + twins.loads(other, loads, _LOAD_S), during, at_once))
    if way.read and program.leaks:
        place = way.read(directory, program.leaks)
    return turns, place


def _turn_of_runs(program: Program, way: _Way, without: Launcher, traced: Launcher, libraries: Path) -> _Turn:
    """A turn of a program whose only load is its whole run."""
    turn = _Turn([], [])
    for launcher in (without, traced, traced, without):
        with twins.started(program, launcher, libraries) as running:
            if launcher is without:
                turn.without.extend(twins.loads(running, 1, _LOAD_S))
                continue
            with _under(way, running, libraries / program.library):
                turn.traced.extend(twins.loads(running, 1, _LOAD_S))
    for _ in range(way.at_once):
        with (
            twins.started(program, without, libraries) as other,
            twins.started(program, traced, libraries) as running,
            _under(way, running, libraries / program.library),
        ):
            turn.at_once.append(twins.load_at_once(other, running, _LOAD_S, way.tool_cpu_ns, once=True))
    return turn


@contextlib.contextmanager
def _under(way: _Way, running: Running, library: Path) -> Iterator[_Place]:
    """With the tool attached, if it is one that attaches."""
    if way.attach is None:
        yield lambda _leaks: None
        return
    with way.attach(running, library) as place_of:
        yield place_of


def _ways(daemon: RunningDaemon) -> tuple[_Way, ...]:
    return (
        _Way(_EXACT, lambda running, _library: _traced(daemon, running, TracingMode.EXACT)),
        _Way(_SAMPLED, lambda running, _library: _traced(daemon, running, TracingMode.SAMPLED)),
        _Way(
            _INSIDE,
            lambda running, _library: _traced(daemon, running, TracingMode.INSIDE),
            launch=launchers.inside,
            turns=_INSIDE_TURNS,
            loads=_INSIDE_LOADS,
            at_once=_LOADS_AT_ONCE,
            tool_cpu_ns=daemon.cpu_ns,
        ),
        _Way(_MEMLEAK, _under_memleak),
        _Way(_HEAPTRACK, launch=launchers.heaptrack, read=place_in_heaptrack),
        _Way(_VALGRIND, launch=launchers.valgrind, read=place_in_valgrind, turns=1),
    )


@contextlib.contextmanager
def _traced(daemon: RunningDaemon, running: Running, mode: TracingMode) -> Iterator[_Place]:
    daemon.client.attach(running.pid, mode)
    daemon.wait_calm()

    def place(leaks: Sequence[str]) -> int | None:
        daemon.wait_ticks(2)
        return place_in_report(daemon.client.report(running.pid), leaks)

    try:
        yield place
    finally:
        # The process may have ended.
        with contextlib.suppress(BpfleakdError):
            daemon.client.detach(running.pid)
        daemon.wait_detached()


@contextlib.contextmanager
def _under_memleak(running: Running, library: Path) -> Iterator[_Place]:
    with memleak(running.pid, library) as output:

        def place(leaks: Sequence[str]) -> int | None:
            """From the first report that begins from now on."""
            reports = output().count("outstanding allocations:")
            deadline_s = time.monotonic() + _REPORT_TIMEOUT_S
            while output().count("outstanding allocations:") == reports and time.monotonic() < deadline_s:
                time.sleep(0.1)
            # It is printed line by line.
            time.sleep(0.5)
            return place_in_memleak(output(), leaks)

        yield place


def _kept(program: str, way: str) -> str:
    return f"{program}: {way}: of the throughput without"


def _table(found: list[_Found], ways: list[str]) -> Table:
    rows = tuple((one.program.name, *(one.cells(way) for way in ways)) for one in found)
    return Table("", ("program", *ways), rows)


def _plot(benchmark: Benchmark, ways: list[str]) -> None:
    names = tuple(program.name for program in PROGRAMS)
    series = tuple(Series(way, tuple(_kept(name, way) for name in names)) for way in ways)
    panel = Panel("", "of the throughput without tracing", "", names, series)
    benchmark.plots.append(Plot("throughput", "What is left of a program's speed", (panel,)))


if __name__ == "__main__":
    run_alone(measure)
