"""Released programs under load: how much of their speed is left, and whether a leak is found.

Each way to trace gets a separate process, in turns. Load generators on the same machine send requests to
servers as fast as they answer.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench import launchers
from bench.answers import place_in_heaptrack, place_in_memleak, place_in_report, place_in_valgrind
from bench.figures import Benchmark, Panel, Plot, Series, Table
from bench.launchers import Launcher
from bench.loads import PROGRAMS, Load, Program, Running
from bench.peers import NotHere, memleak
from bench.runner import run_alone
from bench.targets import own_libc
from bench.tracing import RunningDaemon
from bpfleakd.errors import BpfleakdError
from bpfleakd.model.process import TracingMode

_TURNS = 3
_LOAD_S, _WARM_UP_S = 1.5, 0.3
_TICK_S = 0.25
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

# Of the leaking function in the tool's list.
_Place = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a program is traced: started under a tool, with the tool attached, or neither.

    `attach` yields a function that returns the rank of a function in the tool's answer; `read` finds the rank
    in the files that the tool left in the directory at the program's end. `once` is for slow ways: one turn
    is enough.
    """

    name: str
    attach: Callable[[Running, Path], contextlib.AbstractContextManager[_Place]] | None = None
    launch: Callable[[Path], Launcher] = lambda _directory: Launcher()
    read: Callable[[Path, str], int | None] | None = None
    once: bool = False


def measure(short: bool) -> Benchmark:
    """Measure every program in every way."""
    benchmark = Benchmark("real_programs", "Real programs", short)
    with RunningDaemon(tick_s=_TICK_S) as daemon, _libraries() as libraries:
        ways = _ways(daemon)
        found = {program.name: _Found(program) for program in PROGRAMS}
        for turn in range(1 if short else _TURNS):
            for number, program in enumerate(PROGRAMS):
                # With --short, one other way for each program.
                for way in (*ways[:2], ways[2 + number % (len(ways) - 2)]) if short else ways:
                    if turn == 0 or not way.once:
                        found[program.name].take(way, libraries, 0.3 if short else _LOAD_S, turn)
    for one in found.values():
        one.report(benchmark)
    names = [way.name for way in ways]
    benchmark.tables.append(_table(found, names))
    _plot(benchmark, names[1:])
    benchmark.notes.append(
        "A library that is preloaded leaks 1,000 bytes in every twentieth call that reads or writes; the"
        " OpenJDK program leaks through JNI. The answer is the place of the function that leaks in the tool's"
        " list, some seconds after it was attached, or at the program's end; the compiler has no leak, since"
        " it frees hardly anything. A second of the compiler's is one of its processor time. p99 is what 99"
        " of 100 requests took at most; load makers, programs and tools share the machine."
    )
    return benchmark


class _Found:
    """The measurements of one program, by way."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.loads: dict[str, list[Load]] = defaultdict(list)
        self.places: dict[str, int | None] = {}
        self.missing: dict[str, str] = {}

    def take(self, way: _Way, libraries: Path, seconds: float, turn: int) -> None:
        """One turn of one way; the first turn also checks its answer."""
        if way.name in self.missing:
            return
        program = self.program
        if way.name in program.not_under:
            self.missing[way.name] = program.not_under[way.name]
            return
        try:
            with tempfile.TemporaryDirectory(prefix="bpfleakd-bench-") as directory:
                load, place = _run(program, way, libraries, Path(directory), seconds, asks=turn == 0)
        except NotHere as reason:
            self.missing[way.name] = str(reason)
            return
        self.loads[way.name].append(load)
        if turn == 0 and program.leak and way.name != _NOTHING:
            self.places[way.name] = place

    def report(self, benchmark: Benchmark) -> None:
        """Add its figures, and the reasons for missing ones."""
        name = self.program.name
        without = self.loads.get(_NOTHING, [])
        for way, loads in self.loads.items():
            of = f"{name}: {way}"
            benchmark.add(f"{of}: {self.program.unit} a second", "/s", [load.per_s for load in loads])
            p99s = [load.p99_ms for load in loads if load.p99_ms is not None]
            if p99s:
                benchmark.add(f"{of}: p99", "ms", p99s)
            if way != _NOTHING and without:
                pairs = zip(loads, without, strict=False)
                benchmark.add(_kept(name, way), "", [one.per_s / other.per_s for one, other in pairs])
        for way, reason in self.missing.items():
            benchmark.notes.append(f"{name}, {way}: not measured: {reason}.")

    def cells(self, way: str) -> str:
        """The results, for a table."""
        if way not in self.loads:
            return "not measured"
        parts = []
        if way == _NOTHING:
            parts.append(f"{statistics.median(load.per_s for load in self.loads[way]):,.4g}/s")
        elif self.loads.get(_NOTHING):
            pairs = zip(self.loads[way], self.loads[_NOTHING], strict=False)
            parts.append(f"{statistics.median(one.per_s / other.per_s for one, other in pairs):.0%}")
        p99s = [load.p99_ms for load in self.loads[way] if load.p99_ms is not None]
        if p99s:
            parts.append(f"p99 {statistics.median(p99s):.3g} ms")
        if way in self.places:
            place = self.places[way]
            parts.append("does not name it" if place is None else f"names it: no. {place}")
        return "; ".join(parts)


def _run(
    program: Program, way: _Way, libraries: Path, directory: Path, seconds: float, *, asks: bool
) -> tuple[Load, int | None]:
    """The program under load in one way, and the rank of its leak if `asks`."""
    place: int | None = None
    launcher = way.launch(directory)
    if way.attach or way.name == _NOTHING:
        launcher = replace(launcher, variables={"LD_LIBRARY_PATH": str(libraries), **launcher.variables})
    asks = asks and bool(program.leak)
    with program.start(launcher) as running:
        if not program.once:
            running.load(_WARM_UP_S)
        if way.attach:
            with way.attach(running, libraries / program.library) as place_of:
                load = running.load(seconds)
                place = place_of(program.leak) if asks else None
        else:
            load = running.load(seconds)
    if way.read and asks:
        place = way.read(directory, program.leak)
    return load, place


def _ways(daemon: RunningDaemon) -> tuple[_Way, ...]:
    return (
        _Way(_NOTHING),
        _Way(_EXACT, lambda running, _library: _traced(daemon, running, TracingMode.EXACT)),
        _Way(_SAMPLED, lambda running, _library: _traced(daemon, running, TracingMode.SAMPLED)),
        _Way(
            _INSIDE,
            lambda running, _library: _traced(daemon, running, TracingMode.INSIDE),
            launch=launchers.inside,
        ),
        _Way(_MEMLEAK, _under_memleak),
        _Way(_HEAPTRACK, launch=launchers.heaptrack, read=place_in_heaptrack),
        _Way(_VALGRIND, launch=launchers.valgrind, read=place_in_valgrind, once=True),
    )


@contextlib.contextmanager
def _traced(daemon: RunningDaemon, running: Running, mode: TracingMode) -> Iterator[_Place]:
    daemon.client.attach(running.pid, mode)

    def place(function: str) -> int | None:
        daemon.wait_ticks(2)
        return place_in_report(daemon.client.report(running.pid), function)

    try:
        yield place
    finally:
        # The process may have ended.
        with contextlib.suppress(BpfleakdError):
            daemon.client.detach(running.pid)


@contextlib.contextmanager
def _under_memleak(running: Running, library: Path) -> Iterator[_Place]:
    with memleak(running.pid, library) as output:

        def place(function: str) -> int | None:
            """From the first report that begins from now on."""
            reports = output().count("outstanding allocations:")
            deadline_s = time.monotonic() + _REPORT_TIMEOUT_S
            while output().count("outstanding allocations:") == reports and time.monotonic() < deadline_s:
                time.sleep(0.1)
            # It is printed line by line.
            time.sleep(0.5)
            return place_in_memleak(output(), function)

        yield place


@contextlib.contextmanager
def _libraries() -> Iterator[Path]:
    """A directory with private copies of the allocators: see own_libc."""
    with own_libc() as libc:
        for name in {program.library for program in PROGRAMS} - {libc.name}:
            for path in sorted(Path("/usr/lib").glob(f"*/{name}"))[:1]:
                shutil.copy(path, libc.parent)
        yield libc.parent


def _kept(program: str, way: str) -> str:
    return f"{program}: {way}: of the throughput without"


def _table(found: Mapping[str, _Found], ways: list[str]) -> Table:
    rows = tuple((name, *(one.cells(way) for way in ways)) for name, one in found.items())
    return Table("", ("program", *ways), rows)


def _plot(benchmark: Benchmark, ways: list[str]) -> None:
    names = tuple(program.name for program in PROGRAMS)
    series = tuple(Series(way, tuple(_kept(name, way) for name in names)) for way in ways)
    panel = Panel("", "of the throughput without tracing", "", names, series)
    benchmark.plots.append(Plot("throughput", "What is left of a program's speed", (panel,)))


if __name__ == "__main__":
    run_alone(measure)
