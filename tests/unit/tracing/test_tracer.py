"""The life of traced processes: attach, tick, report, end. Processes are real, the kernel is made up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from bpfleakd import errors
from bpfleakd.analysis.suppressions import Suppressions, parse_suppressions
from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.compilation.options import Capacities
from bpfleakd.kernel.skipped_runs import SkippedRuns
from bpfleakd.model.code.stack import RawStack, StackEnd
from bpfleakd.model.groups import GroupKey
from bpfleakd.model.process import ProcessState, TracingRequest
from bpfleakd.model.report import LeakReport, SortKey, SuppressedSites
from bpfleakd.model.verdict import ProcessVerdict, Verdict
from bpfleakd.process.mappings import read_mappings
from bpfleakd.queries.overview import Overview
from bpfleakd.queries.process_queries import ProcessQueries
from bpfleakd.queries.report import Reporter
from bpfleakd.queries.scan_reply import ScanReply
from bpfleakd.queries.scans import ScanOptions
from bpfleakd.queries.verdict_engine import VerdictEngine
from bpfleakd.tracing.lifetime.beginning import TracingOptions
from bpfleakd.tracing.observer import TracingObserver
from bpfleakd.tracing.process_view import ProcessView
from bpfleakd.tracing.sampling.intervals import SamplingOptions
from bpfleakd.tracing.traced_process import TracedProcess
from bpfleakd.tracing.tracer import Tracer

from .doubles import Clock, FakeAttacher, FakeMaps, FakeSymbolizer, FakeUnwinding
from .programs import running, started, without_main_thread

EXACT = TracingRequest()
CAPACITIES = Capacities(processes=8, sites=1_600, stacks=1_600, threads=8, process_sites=1_000)


class Keeper(TracingObserver):
    """Keeps the last reports."""

    def __init__(self, kept: list[tuple[int, LeakReport | None]]) -> None:
        self._kept = kept

    def ended(self, traced: TracedProcess) -> None:
        self._kept.append((traced.pid, traced.final))


class Slow(TracingObserver):
    """Takes half a second for each process that has exited."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def exited(self, view: ProcessView) -> None:
        self._clock.go_on(0.5)


class Judge(TracingObserver):
    """Takes so long for a process each time, and counts the times by pid."""

    def __init__(self, clock: Clock, took_s: float) -> None:
        self._clock = clock
        self._took_s = took_s
        self.times: Counter[int] = Counter()

    def collected(self, view: ProcessView) -> None:
        self.times[view.traced.pid] += 1
        self._clock.go_on(self._took_s)


class Managed:
    """A runtime that has only a heap, and counts its readings."""

    name = "managed"
    methods = frames = code = allocations = types = None
    code_tables = notes = ()
    failure = watched_since_ns = None

    def __init__(self) -> None:
        self.readings = 0

    @property
    def live_heap(self) -> Managed:
        return self

    def read(self, _now_ns: int) -> tuple[()]:
        self.readings += 1
        return ()

    def close(self) -> None:
        pass


class World:
    """A tracer and all that it stands on."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.maps = FakeMaps()
        self.attacher = FakeAttacher(self.maps)
        self.unwinding = FakeUnwinding()
        self.watched: list[bool] = []
        self.kept: list[tuple[int, LeakReport]] = []
        self.symbolizers: dict[int, FakeSymbolizer] = {}
        self.tracer = Tracer(
            self.maps,  # type: ignore[arg-type]
            self.attacher,  # type: ignore[arg-type]
            self.unwinding,  # type: ignore[arg-type]
            self.watched.append,
            self._symbolizer_of,  # type: ignore[arg-type]
            TracingOptions(SamplingOptions(target_per_s=1_000), CAPACITIES, unattended_s=900),
            self.clock,
        )
        reporter = Reporter(window_s=10, attach_method="session")
        engine = VerdictEngine(reporter, self.tracer)
        self.queries = ProcessQueries(self.tracer, engine, reporter)
        self.overview = Overview(self.tracer, reporter, attach_method="session", top_sites=3)
        self.tracer.observers += [engine, self.queries, self.overview, Keeper(self.kept)]

    def _symbolizer_of(self, attachment) -> FakeSymbolizer:
        return self.symbolizers.setdefault(attachment.process.id.pid, FakeSymbolizer())

    def allocates(self, pid: int, **sites: int) -> None:
        """The process has this many live bytes at each site (s1=23: stack 1), each in a single block."""
        process = self.maps.processes[pid]
        for name, size in sites.items():
            stack_id = int(name[1:])
            process.sites[stack_id] = (size, 1, size, 1)
            process.stacks[stack_id] = RawStack((stack_id,), StackEnd.BOTTOM)
        process.blocks = [(c[0], self.clock.now_ns, s, pid, 0) for s, c in process.sites.items() if c[1]]

    def kill(self, pid: int) -> None:
        os.kill(pid, 9)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def states(self) -> dict[int, ProcessState]:
        return {row.process.pid: row.process.state for row in self.overview.processes()}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.tracer.close()
    assert world.attacher.attached == set()


@pytest.fixture
def pid() -> Iterator[int]:
    with running() as pid:
        yield pid


def functions(world: World, pid: int, **options: object) -> list[str | None]:
    wanted = {"limit": None, "sort": SortKey.LIVE, **options}
    return [site.function for site in world.queries.report(pid, **wanted).sites]


class TestTracing:
    """While a process runs."""

    def test_figures_are_read_when_they_are_asked_for(self, world: World, pid: int) -> None:
        """A report does not wait for the next tick; a row shows the last reading."""
        row = world.queries.row(world.tracer.start(pid, EXACT))
        assert (row.process.state, row.process.live_bytes, row.sites) == (ProcessState.TRACED, 0, 0)
        world.allocates(pid, s1=23, s2=101)
        assert world.overview.processes()[0].process.live_bytes == 0
        assert functions(world, pid) == ["function_2", "function_1"]
        assert world.overview.processes()[0].process.live_bytes == 124

    def test_processes_do_not_mix(self, world: World, pid: int) -> None:
        """Each has the sites that are its own."""
        with running() as other:
            for process in (pid, other):
                world.tracer.start(process, EXACT)
            world.allocates(pid, s1=23)
            world.allocates(other, s1=101, s2=7)
            world.tracer.tick()
            live = {row.process.pid: row.process.live_bytes for row in world.overview.processes()}
            assert live == {pid: 23, other: 108}
            assert functions(world, other) == ["function_1", "function_2"]

    def test_between_ticks_runtimes_are_followed(self, world: World, pid: int) -> None:
        """Their heaps are; the rest of the process waits until a new stack, or new code, makes it read."""
        traced = world.tracer.start(pid, EXACT)
        runtime = Managed()
        traced.runtimes._runtimes.append(runtime)  # type: ignore[arg-type]
        world.allocates(pid, s1=23)
        assert world.tracer.glance()
        world.tracer.tick()
        before = runtime.readings
        for _ in range(3):
            world.clock.go_on(1.0)
            assert not world.tracer.glance()
        assert runtime.readings == before + 3
        world.maps.processes[pid].library_changes += 1
        assert world.tracer.glance()

    def test_without_runtimes_nothing_is_read_between_ticks(self, world: World, pid: int) -> None:
        """A new stack waits for the next tick."""
        world.tracer.start(pid, EXACT)
        world.tracer.tick()
        world.allocates(pid, s1=23)
        assert not world.tracer.glance()

    def test_ends_of_threads_that_were_left_out_are_made_up_for(self, world: World, pid: int) -> None:
        """Once, for the processes that are traced; runs of other programs do not matter here."""
        world.tracer.start(pid, EXACT)
        world.tracer.tick()
        assert world.maps.swept == []
        world.maps.skipped = SkippedRuns(thread_ends=2)
        world.tracer.tick()
        world.tracer.tick()
        world.maps.skipped = SkippedRuns(address_space_changes=5, thread_ends=2)
        world.tracer.tick()
        assert world.maps.swept == [{pid}]

    def test_an_exec_that_was_left_out_is_found(self, world: World) -> None:
        """By the stack, which is another; a process that did not call exec is traced as before."""
        execing = ("sh", "-c", "echo; read go; exec sh -c 'echo; read nothing'")
        with ExitStack() as stack:
            staying = stack.enter_context(running())
            child = stack.enter_context(started(*execing))
            for pid in (staying, child.pid):
                world.attacher.mappings[pid] = tuple(read_mappings(pid))
                world.tracer.start(pid, EXACT)
            assert child.stdin
            assert child.stdout
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            world.maps.skipped = SkippedRuns(execs=1)
            world.tracer.tick()
            world.tracer.tick()
            assert world.states() == {staying: ProcessState.TRACED, child.pid: ProcessState.EXECED}

    def test_changes_of_address_spaces_that_were_left_out_are_read(self, world: World, pid: int) -> None:
        """The map is compared with /proc, as when the ring was full."""
        world.tracer.start(pid, EXACT)
        with capture_logs() as logs:
            world.maps.skipped = SkippedRuns(address_space_changes=3)
            world.tracer.tick()
            world.tracer.tick()
        assert [entry["lost"] for entry in logs if entry["event"] == "space.repaired"] == [3]
        assert [entry["event"] for entry in logs].count("programs.skipped") == 1

    def test_growth_between_ticks(self, world: World, pid: int) -> None:
        """Bytes gained over the window, by CLOCK_MONOTONIC."""
        world.tracer.start(pid, EXACT)
        for second in range(1, 21):
            world.clock.go_on(1)
            world.allocates(pid, s1=23 * second)
            world.tracer.tick()
        (site,) = world.queries.report(pid, limit=1, sort=SortKey.GROWTH).sites
        assert site.growth_bytes_per_s == 23.0
        assert world.overview.processes()[0].process.growth_bytes_per_s == 23.0

    def test_a_snapshot_has_the_largest_sites(self, world: World, pid: int) -> None:
        """As many as the metrics show, and every process."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=1, s2=2, s3=3, s4=4, s5=5)
        world.tracer.tick()
        snapshot = world.overview.snapshot()
        assert [site.live_bytes for site in snapshot.top_sites[pid]] == [5, 4, 3]
        assert [row.process.pid for row in snapshot.processes] == [pid]
        assert snapshot.daemon.ticks == 1

    def test_groups_are_of_all_sites(self, world: World, pid: int) -> None:
        """A limit applies to the groups."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101, s3=7)
        groups = world.queries.groups(pid, by=GroupKey.MODULE, limit=1, sort=SortKey.LIVE).groups
        assert [(group.group, group.live_bytes, len(group.sites)) for group in groups] == [("shop", 131, 3)]
        (thread,) = world.queries.groups(pid, by=GroupKey.THREAD, limit=None, sort=SortKey.LIVE).groups
        assert (thread.group, thread.live_bytes, thread.live_count) == (str(pid), 131, 3)

    def test_blocks(self, world: World, pid: int) -> None:
        """One by one, with the names of the threads as they are now."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101)
        world.clock.go_on(7)
        report = world.queries.blocks(pid, site=None, older_than_s=5.0, limit=1)
        assert (report.live_bytes, report.live_count, report.left_out_count) == (124, 2, 1)
        (site,) = report.sites
        assert (site.blocks[0].size_bytes, site.blocks[0].age_s, site.blocks[0].tid) == (101, 7.0, pid)
        assert site.blocks[0].comm

    def test_the_peak(self, world: World, pid: int) -> None:
        """The programs' figure, as soon as it is read; it does not decrease."""
        world.tracer.start(pid, EXACT)
        process = world.maps.processes[pid]
        process.heap_peak_bytes = 1009
        world.allocates(pid, s1=23)
        world.clock.go_on(1)
        world.tracer.tick()
        process.heap_peak_bytes = 101
        world.tracer.tick()
        assert world.overview.processes()[0].process.peak_live_bytes == 1009

    def test_nothing_is_traced(self, world: World) -> None:
        """A tick and a snapshot of nothing at all."""
        assert world.tracer.tick() == 0.0
        assert world.overview.processes() == ()
        assert world.overview.snapshot().top_sites == {}

    def test_libraries_that_come(self, world: World, pid: int) -> None:
        """After dlopen the mappings are read again, for names and for the walker."""
        world.tracer.start(pid, EXACT)
        world.maps.processes[pid].library_changes = 2
        world.tracer.tick()
        world.tracer.tick()
        assert world.symbolizers[pid].updates == 1
        assert world.unwinding.followed == [pid]


class TestSettingAside:
    """An error with one process does not affect the others."""

    @pytest.fixture
    def unreadable(self, world: World) -> dict[int, Exception]:
        """Processes whose mappings cannot be read, with the resulting events."""
        return world.attacher.unreadable

    @pytest.mark.parametrize("error", [errors.AccessDenied("no"), OSError(5, "I/O error"), KeyError(23)])
    def test_mappings_that_cannot_be_read_for_a_while(
        self, world: World, pid: int, unreadable: dict[int, Exception], error: Exception
    ) -> None:
        """The process is tried again after longer and longer pauses; then it is as if nothing had been."""
        with running() as other:
            for process in (pid, other):
                world.tracer.start(process, EXACT)
            unreadable[pid] = error
            world.maps.processes[pid].library_changes += 1
            tries = []
            for second in range(60):
                world.allocates(other, s1=23 + second)
                tries.append(self._is_tried(world, pid))
                rows = {row.process.pid: row for row in world.overview.processes()}
                assert type(error).__name__ in rows[pid].set_aside
                assert (rows[other].set_aside, rows[other].process.live_bytes) == ("", 23 + second)
                assert set(world.overview.snapshot().top_sites) >= {other}
                world.clock.go_on(1)
            assert [second for second, tried in enumerate(tries) if tried] == [0, 2, 6, 14, 30]
            del unreadable[pid]
            world.clock.go_on(3)
            world.allocates(pid, s2=101)
            world.tracer.tick()
            rows = {row.process.pid: row for row in world.overview.processes()}
            assert (rows[pid].set_aside, rows[pid].process.live_bytes) == ("", 101)
            assert world.attacher.followed == [pid]

    def test_its_end_is_noticed(self, world: World, pid: int, unreadable: dict[int, Exception]) -> None:
        """Set aside or not."""
        world.tracer.start(pid, EXACT)
        unreadable[pid] = errors.AccessDenied("no")
        world.maps.processes[pid].library_changes += 1
        world.tracer.tick()
        world.kill(pid)
        world.tracer.tick()
        assert world.states() == {pid: ProcessState.EXITED}

    @staticmethod
    def _is_tried(world: World, pid: int) -> bool:
        traced = world.tracer.processes.running[pid]
        before = traced.set_aside
        world.tracer.tick()
        return traced.set_aside is not before


class TestAttaching:
    """Attaching once, again, and in vain."""

    def test_twice(self, world: World, pid: int) -> None:
        """A process that is traced already is not attached again."""
        world.tracer.start(pid, EXACT)
        with pytest.raises(errors.AlreadyAttached):
            world.tracer.start(pid, EXACT)
        assert world.states() == {pid: ProcessState.TRACED}

    def test_in_vain(self, world: World, pid: int) -> None:
        """A refused attach leaves nothing, and watches no address space."""
        world.attacher.refused = {pid}
        with pytest.raises(errors.NoAllocator):
            world.tracer.start(pid, EXACT)
        assert world.states() == {}
        assert world.watched == []

    def test_a_pid_that_was_exec_since(self, world: World, pid: int) -> None:
        """The end that no tick has noticed yet is noticed by the attach: the new program starts empty."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23)
        world.maps.processes[pid].state = RecordingState.EXECED
        world.tracer.tick()
        assert world.states() == {pid: ProcessState.EXECED}
        world.tracer.start(pid, EXACT)
        assert world.states() == {pid: ProcessState.TRACED}
        assert functions(world, pid) == []

    def test_detach(self, world: World, pid: int) -> None:
        """The last figures are the answer, and the process is forgotten."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23)
        row = world.queries.row(world.tracer.detach(pid))
        assert (row.process.state, row.process.live_bytes) == (ProcessState.DETACHED, 23)
        assert world.attacher.attached == set()
        assert world.symbolizers[pid].closed
        assert world.watched[-1] is False
        for ask in (world.tracer.detach, lambda pid: functions(world, pid)):
            with pytest.raises(errors.NotAttached):
                ask(pid)

    def test_watching_goes_on_for_the_others(self, world: World, pid: int) -> None:
        """The address spaces are watched until the last process is detached."""
        with running() as other:
            world.tracer.start(pid, EXACT)
            world.tracer.start(other, EXACT)
            world.tracer.detach(pid)
            assert world.watched[-1] is True
            world.tracer.detach(other)
            assert world.watched[-1] is False


class TestEnd:
    """When a process is over."""

    def test_exit(self, world: World, pid: int) -> None:
        """Its last state is kept, with names, and can be sorted and cut; the probes are removed."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101)
        world.kill(pid)
        world.tracer.tick()

        assert world.states() == {pid: ProcessState.EXITED}
        assert world.attacher.attached == set()
        assert functions(world, pid) == ["function_2", "function_1"]
        assert functions(world, pid, limit=1) == ["function_2"]
        (last,) = world.overview.snapshot().processes
        assert (last.process.state, last.process.live_bytes) == (ProcessState.EXITED, 124)
        assert world.overview.snapshot().processes == ()
        row = world.queries.row(world.tracer.detach(pid))
        assert (row.process.state, row.process.live_bytes) == (ProcessState.EXITED, 124)
        assert world.states() == {}

    @pytest.mark.parametrize("exits", [True, False])
    def test_what_has_exited_reaches_no_limit(
        self, world: World, pid: int, exits: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that was detached lives on, and still reaches it."""
        leaks = ProcessVerdict(Verdict.LEAK, "why", 23.0, 23.0, 20.0, 26.0, 1.0, None, 7_500.0)
        monkeypatch.setattr(VerdictEngine, "process_verdict", staticmethod(lambda _traced, _limits: leaks))
        world.tracer.start(pid, EXACT)
        if exits:
            world.kill(pid)
            world.tracer.tick()
        else:
            world.tracer.stop(pid)
        last = world.queries.report(pid, limit=None, sort=SortKey.LIVE).process_verdict
        assert last is not None
        assert (last.verdict, last.limit_reached_s) == (Verdict.LEAK, None if exits else 7_500.0)

    def test_many_are_judged_less_often_than_one(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One at each tick; many share a part of the time, each has its turn every few seconds."""
        monkeypatch.setattr("time.thread_time_ns", world.clock)
        judge = Judge(world.clock, took_s=0.02)
        world.tracer.observers.append(judge)

        def ticks(count: int) -> Counter[int]:
            judge.times.clear()
            for _ in range(count):
                world.clock.go_on(1)
                world.tracer.tick()
            return judge.times

        with running() as first, running() as second:
            world.tracer.start(first, EXACT)
            assert ticks(70)[first] == 70
            world.tracer.start(second, EXACT)
            # Five seconds after its attach a process is not made to wait.
            assert ticks(5)[second] == 5
            ticks(60)
            assert {*ticks(24).values()} == {6}

    def test_judging_that_waits_for_a_busy_machine_goes_on(self, world: World) -> None:
        """Each takes a third of a second, but hardly any processor time: the next tick judges again."""
        judge = Judge(world.clock, took_s=0.3)
        world.tracer.observers.append(judge)
        with running() as first, running() as second:
            for pid in (first, second):
                world.tracer.start(pid, EXACT)
            for _ in range(4):
                world.clock.go_on(1)
                world.tracer.tick()
            assert judge.times == {first: 4, second: 4}

    def test_a_process_that_keeps_its_judge_waiting_is_judged_less_often(
        self, world: World, pid: int
    ) -> None:
        """Without using a processor: five seconds count as one, after which there is a pause of four."""
        judge = Judge(world.clock, took_s=5.0)
        world.tracer.observers.append(judge)
        world.tracer.start(pid, EXACT)
        for _ in range(12):
            world.clock.go_on(1)
            world.tracer.tick()
        assert judge.times[pid] == 3

    def test_those_that_end_at_once_are_ended_one_after_the_other(self, world: World) -> None:
        """A last report that takes long leaves the others to later ticks; nothing of them is lost."""
        world.tracer.observers.append(Slow(world.clock))
        with running() as first, running() as second, running() as third:
            for pid in (first, second, third):
                world.tracer.start(pid, EXACT)
                world.allocates(pid, s1=23)
                world.kill(pid)
            for left in (2, 1, 0):
                world.tracer.tick()
                assert world.tracer.traced_count() == left
            assert world.states() == dict.fromkeys((first, second, third), ProcessState.EXITED)
            assert all(report.process.live_bytes == 23 for _pid, report in world.kept)

    def test_one_that_waits_for_names_keeps_no_other_waiting(self, world: World) -> None:
        """Asking for its names takes all the time of a tick, in every other tick."""
        world.tracer.observers.append(Slow(world.clock))
        with running() as first, running() as second:
            for pid in (first, second):
                world.tracer.start(pid, EXACT)
            world.symbolizers[first].is_pending = True
            world.kill(first)
            world.kill(second)
            for _ in range(2):
                world.tracer.tick()
            assert world.states() == {first: ProcessState.TRACED, second: ProcessState.EXITED}

    def test_the_report_of_a_detached_process_can_be_kept(self, world: World, pid: int) -> None:
        """It is exported while the process runs on, and until it is traced again."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101)
        world.tracer.stop(pid)

        assert world.attacher.attached == set()
        assert functions(world, pid) == ["function_2", "function_1"]
        snapshot = world.overview.snapshot()
        assert [row.process.state for row in snapshot.processes] == [ProcessState.DETACHED]
        assert [site.live_bytes for site in snapshot.top_sites[pid]] == [101, 23]
        with pytest.raises(errors.NotAttached):
            world.queries.address_space(pid)

        world.tracer.start(pid, EXACT)
        assert [row.process.live_bytes for row in world.overview.snapshot().processes] == [0]
        world.tracer.stop(pid)
        world.kill(pid)
        assert len(world.overview.snapshot().processes) == 1
        assert world.overview.snapshot().processes == ()
        assert world.states() == {pid: ProcessState.DETACHED}

    def test_blocks_are_kept(self, world: World, pid: int) -> None:
        """As they were at the end, however long ago that is."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101)
        world.clock.go_on(7)
        world.kill(pid)
        world.tracer.tick()
        world.clock.go_on(1000)
        report = world.queries.blocks(pid, site=None, older_than_s=0.0, limit=1)
        assert (report.process.state, report.live_bytes, report.left_out_count) == (
            ProcessState.EXITED,
            124,
            1,
        )
        assert [block.age_s for block in report.sites[0].blocks] == [7.0]
        assert world.queries.blocks(pid, site=None, older_than_s=8.0, limit=1).sites == ()
        groups = world.queries.groups(pid, by=GroupKey.FUNCTION, limit=None, sort=SortKey.LIVE).groups
        assert [group.live_bytes for group in groups] == [101, 23]

    def test_time_stops(self, world: World, pid: int) -> None:
        """It was attached for as long as it lived."""
        world.tracer.start(pid, EXACT)
        world.clock.go_on(23)
        world.kill(pid)
        world.tracer.tick()
        world.clock.go_on(101)
        assert world.overview.processes()[0].process.attached_s == 23.0

    def test_exec(self, world: World, pid: int) -> None:
        """The new program's libraries do not name the old one's stacks: these keep their names."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23)
        world.symbolizers[pid].covered = False
        process = world.maps.processes[pid]
        process.state, process.library_changes = RecordingState.EXECED, 2

        assert functions(world, pid) == ["function_1"]
        world.tracer.tick()

        assert world.states() == {pid: ProcessState.EXECED}
        assert functions(world, pid) == ["function_1"]
        assert world.symbolizers[pid].updates == 0
        assert world.unwinding.followed == []

    def test_a_process_without_its_main_thread(self, world: World, tmp_path: Path) -> None:
        """It has not ended while another thread runs, and its known mappings are kept."""
        with running(without_main_thread(tmp_path)) as pid:
            world.tracer.start(pid, EXACT)
            world.allocates(pid, s1=23)
            world.maps.processes[pid].library_changes = 2
            world.tracer.tick()
            assert world.states() == {pid: ProcessState.TRACED}
            assert functions(world, pid) == ["function_1"]
            assert world.symbolizers[pid].updates == 0
            world.kill(pid)
            world.tracer.tick()
            assert world.states() == {pid: ProcessState.EXITED}

    def test_some_that_ended_are_remembered(self, world: World) -> None:
        """Sixteen of them: the oldest is forgotten first."""
        with ExitStack() as stack:
            pids = [stack.enter_context(running()) for _ in range(18)]
            for pid in pids:
                world.tracer.start(pid, EXACT)
                world.kill(pid)
                world.tracer.tick()
            assert list(world.states()) == pids[2:]
            assert world.overview.stats().processes_ended_total == 18

    def test_close(self, world: World, pid: int) -> None:
        """The daemon's end takes all probes out and closes all files."""
        with running() as other:
            for process in (pid, other):
                world.tracer.start(process, EXACT)
            world.tracer.close()
            assert world.states() == {}
            assert all(symbolizer.closed for symbolizer in world.symbolizers.values())


class TestPast:
    """What changed between two times."""

    def test_since_then(self, world: World, pid: int) -> None:
        """New, grown and gone, to the byte; what did not change is counted."""
        world.tracer.start(pid, EXACT)
        for second in range(1, 61):
            world.clock.go_on(1)
            world.allocates(pid, s1=(100_000_003 if second < 40 else 200_000_007), s3=100_000_007)
            if second >= 40:
                world.allocates(pid, s2=23)
            world.maps.processes[pid].sites[4] = (7, 1, 7, 1) if second < 40 else (0, 0, 7, 1)
            world.tracer.tick()
        report = world.queries.compare(pid, from_ago_s=30, to_ago_s=0)
        assert [
            (site.function, site.change.value, site.before_count, site.after_bytes) for site in report.sites
        ] == [
            ("function_1", "grown", 1, 200_000_007),
            ("function_2", "new", 0, 23),
            (None, "gone", 1, 0),
        ]
        assert (report.unchanged_count, report.left_out_sites) == (1, 0)
        assert (report.before.source, report.after.source) == ("30s ago", "now")
        assert report.before.attached_s == 30
        assert 0 < report.before.resolution_s <= 5
        assert report.after.resolution_s == 0
        assert (report.before.left_out_bytes, report.after.left_out_bytes) == (0, 0)
        # between two times of the past, and from the start
        assert world.queries.compare(pid, from_ago_s=50, to_ago_s=30).sites == ()
        whole = world.queries.compare(pid, from_ago_s=None, to_ago_s=0)
        assert {site.change.value for site in whole.sites} == {"new"}
        assert whole.after.live_bytes == 200_000_007 + 100_000_007 + 23

    def test_a_limit(self, world: World, pid: int) -> None:
        """Those that changed most; the rest is counted."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=1_000, s2=23, s3=101)
        world.clock.go_on(1)
        report = world.queries.compare(pid, from_ago_s=None, to_ago_s=0, limit=1)
        assert [site.function for site in report.sites] == ["function_1"]
        assert (report.left_out_sites, report.after.left_out_bytes) == (2, 124)

    def test_before_the_attach(self, world: World, pid: int) -> None:
        """Nothing is known of that."""
        world.tracer.start(pid, EXACT)
        world.clock.go_on(5)
        with pytest.raises(errors.NoSuchTime, match="traced for 5"):
            world.queries.compare(pid, from_ago_s=600, to_ago_s=0)


class TestSuppressions:
    """Call sites that are known and not to be reported again."""

    def test_in_every_list(self, world: World, pid: int) -> None:
        """Left out of reports, blocks, snapshots and comparisons, and counted; on demand they are there."""
        world.tracer.use_suppressions(parse_suppressions("leak:^function_2$", "mine"))
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101, s3=7)
        world.clock.go_on(1)
        world.tracer.tick()
        known = {"^function_2$": SuppressedSites(1, 101, 1)}
        report = world.queries.report(pid, limit=None, sort=SortKey.LIVE)
        assert report.suppressed == known
        assert functions(world, pid) == ["function_1", "function_3"]
        assert functions(world, pid, suppress=False) == ["function_2", "function_1", "function_3"]
        assert report.process.live_bytes == 131
        assert [site.live_bytes for site in world.overview.snapshot().top_sites[pid]] == [23, 7]
        blocks = world.queries.blocks(pid, site=None, older_than_s=0, limit=100)
        assert (blocks.live_bytes, blocks.suppressed) == (30, known)
        assert len(blocks.sites) == 2
        whole = world.queries.blocks(pid, site=None, older_than_s=0, limit=100, suppress=False)
        assert (whole.live_bytes, len(whole.sites), whole.suppressed) == (131, 3, {})
        groups = world.queries.groups(pid, by=GroupKey.FUNCTION, limit=None, sort=SortKey.LIVE)
        assert [group.group for group in groups.groups] == ["function_1", "function_3"]
        assert groups.suppressed == known
        changes = world.queries.compare(pid, from_ago_s=None, to_ago_s=0)
        assert [site.function for site in changes.sites] == ["function_1", "function_3"]
        assert (changes.left_out_sites, changes.after.left_out_bytes) == (1, 101)

    def test_after_the_end(self, world: World, pid: int) -> None:
        """The last report and its blocks are unchanged; single sites can be requested."""
        world.tracer.use_suppressions(parse_suppressions("leak:^function_2$", "mine"))
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101)
        world.tracer.stop(pid)
        assert functions(world, pid) == ["function_1"]
        assert functions(world, pid, suppress=False) == ["function_2", "function_1"]
        blocks = world.queries.blocks(pid, site=None, older_than_s=0, limit=100)
        assert (blocks.live_bytes, blocks.live_count, blocks.left_out_count) == (23, 1, 0)
        assert blocks.suppressed == {"^function_2$": SuppressedSites(1, 101, 1)}
        (hidden,) = [
            site.site
            for site in world.queries.report(pid, limit=None, sort=SortKey.LIVE, suppress=False).sites
            if site.function == "function_2"
        ]
        assert world.queries.blocks(pid, site=hidden, older_than_s=0, limit=100).live_bytes == 101

    def test_others_at_a_reload(self, world: World, pid: int) -> None:
        """Formerly suppressed sites are shown, and vice versa."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101)
        assert functions(world, pid) == ["function_2", "function_1"]
        world.tracer.use_suppressions(parse_suppressions("leak:function_1", "mine"))
        assert functions(world, pid) == ["function_2"]
        world.tracer.use_suppressions(parse_suppressions("", "mine"))
        assert functions(world, pid) == ["function_2", "function_1"]


def test_a_scan_of_a_heap_that_was_given_back(world: World):
    """Memory that counted as free heap memory may have been reused: then there is no answer."""
    with running() as pid:
        world.tracer.start(pid, EXACT)
        world.tracer.tick()
        queries = world.queries
        scan = queries.begin_scan(pid, ScanOptions(0.0, True, 0.2, 0, Suppressions()))
        reply = ScanReply(world.clock.now_ns, "stopped", [], 0.1, 0.2, 4_096, 0, 0, [], [], 4_096)
        assert queries.finish_scan(scan, reply).known_heap_bytes == 4_096
        assert queries.finish_scan(scan, replace(reply, dismissed=[(0x1000, 0x1008)])) is None


def test_the_course_of_a_call_site_reads_no_block(world: World, monkeypatch: pytest.MonkeyPatch):
    """A million blocks would take a second; the history with survivors reads them all."""
    with running() as pid:
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23, s2=101)
        world.tracer.tick()
        queries = world.queries
        wanted = queries.report(pid, limit=None, sort=SortKey.LIVE).sites[1]
        read = []
        monkeypatch.setattr(world.maps, "live_blocks", lambda pid: iter(read.append(pid) or ()))
        (site,) = queries.history(pid, limit=None, site=wanted.site, survivors=False).sites
        assert (site.site, site.live_bytes, site.low_bytes[-1]) == (wanted.site, 23, 23)
        assert (site.survivors_count, site.survivors_bytes, read) == ((), (), [])
        assert len(queries.history(pid, limit=None).sites[0].survivors_count) == len(site.low_bytes)
        assert read == [pid]


class TestLastNames:
    """The last report of a process that exited waits for names, but not for long."""

    def test_it_is_kept_while_names_are_to_come(self, world: World, pid: int) -> None:
        """And ended as soon as they are there, which is soon."""
        world.tracer.start(pid, EXACT)
        world.allocates(pid, s1=23)
        world.symbolizers[pid].is_pending = True
        world.tracer.tick()
        assert not world.symbolizers[pid].hurried
        world.kill(pid)
        world.tracer.tick()
        world.tracer.tick()
        assert world.symbolizers[pid].hurried == 1
        assert world.states() == {pid: ProcessState.TRACED}
        world.symbolizers[pid].is_pending = False
        world.tracer.tick()
        assert world.states() == {pid: ProcessState.EXITED}
        assert functions(world, pid) == ["function_1"]

    def test_names_that_never_come(self, world: World, pid: int) -> None:
        """After ten seconds it has those that there are."""
        world.tracer.start(pid, EXACT)
        world.symbolizers[pid].is_pending = True
        world.kill(pid)
        world.tracer.tick()
        world.clock.go_on(9)
        world.tracer.tick()
        assert world.states() == {pid: ProcessState.TRACED}
        world.clock.go_on(2)
        world.tracer.tick()
        assert world.states() == {pid: ProcessState.EXITED}

    def test_who_attaches_does_not_wait(self, world: World, pid: int) -> None:
        """A look whether it is still there ends it at once."""
        world.tracer.start(pid, EXACT)
        world.symbolizers[pid].is_pending = True
        world.kill(pid)
        assert not world.tracer.still_traced(pid)
        assert world.states() == {pid: ProcessState.EXITED}
