"""The watcher of growing memory, on made-up memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from bpfleakd.model.process import ProcessId, TracingMode
from bpfleakd.model.watching import WatchState
from bpfleakd.process.policy.rules import Decision
from bpfleakd.supervision.descriptor_watch import DescriptorWatch
from bpfleakd.supervision.growth_watch import GrowthOptions
from bpfleakd.supervision.growth_watcher import AutoOptions, Close, GrowthWatcher, Open
from bpfleakd.supervision.look_schedule import LookOptions

MIB = 1 << 20
NS_PER_S = 1_000_000_000
AUTO, WATCH = Decision(TracingMode.AUTO, "default"), Decision(TracingMode.WATCH, "rule 1")
OPTIONS = AutoOptions(interval_s=10.0, window_s=60.0, looks=LookOptions(windows=1))


class World:
    """A watcher, processes whose memory is a function of time, and a supervisor that records windows."""

    def __init__(self, options: AutoOptions = OPTIONS) -> None:
        self.now_s = 0
        self.memory: dict[ProcessId, Callable[[int], float]] = {}
        self.reads = 0
        self.actions: list[tuple[int, Open | Close]] = []
        self.watcher = GrowthWatcher(options, self._read, lambda pid: f"program-{pid}")
        self._open_until_s: dict[ProcessId, float] = {}

    def _read(self, process: ProcessId, known_bytes: int) -> int | None:
        self.reads += 1
        memory = self.memory.get(process)
        return None if memory is None else int(memory(self.now_s))

    def add(self, pid: int, memory: Callable[[int], float], decision: Decision = AUTO) -> ProcessId:
        process = ProcessId(pid, 8_009)
        self.memory[process] = memory
        self.watcher.add(process, decision)
        return process

    def go_on(self, seconds: int) -> None:
        """A step a second."""
        for _second in range(seconds):
            self.now_s += 1
            now_ns = self.now_s * NS_PER_S
            for process in [p for p, until_s in self._open_until_s.items() if self.now_s >= until_s]:
                del self._open_until_s[process]
                self.watcher.closed(process, now_ns)
            for action in self.watcher.step(now_ns):
                self.actions.append((self.now_s, action))
                if isinstance(action, Open):
                    self._open_until_s[action.process] = self.now_s + action.window_s
                    self.watcher.opened(action.process, now_ns)

    def refuse(self, process: ProcessId, reason: str) -> None:
        """The window that is open was none."""
        del self._open_until_s[process]
        self.watcher.failed(process, self.now_s * NS_PER_S, reason, for_good=True)

    @property
    def opened(self) -> list[int]:
        return [action.process.pid for _, action in self.actions if isinstance(action, Open)]

    def state(self, process: ProcessId) -> WatchState:
        (row,) = [row for row in self.watcher.processes() if row.pid == process.pid]
        return row.state


def leaking(s: float) -> float:
    return 50 * MIB + s * MIB


def steady(s: float) -> float:
    return 500 * MIB


@pytest.fixture
def world() -> World:
    return World()


def test_only_the_process_that_grows_is_looked_at(world):
    """In a window of the length that is configured, and with the reason."""
    world.add(1, steady)
    world.add(2, leaking)
    world.add(3, lambda s: 50 * MIB + 300 * MIB * (s > 200))
    world.go_on(500)
    assert world.opened == [2]
    (_when, action), *_ = world.actions
    assert (action.mode, action.window_s) == (TracingMode.EXACT, 60.0)
    assert "bytes/s" in action.reason


def test_what_goes_on_growing_is_looked_at_again_ever_more_seldom(world):
    """After pauses of 5, 10, 20 minutes."""
    world.add(2, leaking)
    world.go_on(3 * 3600)
    times_s = [when_s for when_s, _ in world.actions]
    pauses_s = [late - early - 60 for early, late in pairwise(times_s)]
    assert pauses_s[:3] == [pytest.approx(pause_s, abs=12) for pause_s in (300, 600, 1200)]


def test_the_life_of_a_leak(world):
    """Watched, growing, in a window, paused; and watched again once it has stopped."""
    process = world.add(2, lambda s: leaking(min(s, 500)))
    states = []
    for _ in range(300):
        world.go_on(10)
        state = world.state(process)
        if not states or states[-1] != state:
            states.append(state)
    assert states == [WatchState.WATCHED, WatchState.WINDOW, WatchState.PAUSED, WatchState.WATCHED]


def test_a_process_that_is_only_to_be_watched_is_never_attached(world):
    """It shows as growing, with its rate."""
    process = world.add(2, leaking, WATCH)
    world.go_on(1_000)
    assert world.opened == []
    assert world.state(process) is WatchState.GROWING
    assert world.watcher.processes()[0].growth_bytes_per_s == pytest.approx(MIB, rel=0.1)


def test_a_window_is_closed_when_the_process_may_not_be_attached_any_more(world):
    """The policy was changed."""
    process = world.add(2, leaking)
    while not world.opened:
        world.go_on(1)
    world.watcher.add(process, WATCH)
    world.go_on(1)
    assert isinstance(world.actions[-1][1], Close)
    world.go_on(1_000)
    assert world.opened == [2]


def test_a_process_that_is_removed_is_forgotten(world):
    """Its memory is not read any more, and it makes room for others."""
    first, second = world.add(1, lambda s: 2 * leaking(s)), world.add(2, leaking)
    while not world.opened:
        world.go_on(1)
    assert world.opened == [first.pid]
    world.watcher.remove(first)
    world.go_on(80)
    assert world.opened == [first.pid, second.pid]
    world.watcher.remove(second)
    reads = world.reads
    world.go_on(600)
    assert world.reads == reads
    assert world.watcher.summary().watched == 0


def test_a_process_whose_memory_cannot_be_read_harms_nobody(world):
    """It is exiting, or a zombie that its parent does not reap."""
    process = world.add(1, steady)
    del world.memory[process]
    world.add(2, leaking)
    world.go_on(600)
    assert world.opened == [2]


def test_the_same_pid_with_another_start_is_another_process(world):
    """The memory of the first one says nothing about it."""
    world.add(2, leaking)
    world.go_on(200)
    world.watcher.remove(ProcessId(2, 8_009))
    again = ProcessId(2, 9_001)
    world.memory[again] = steady
    world.watcher.add(again, AUTO)
    world.go_on(1_000)
    assert world.opened == []


def test_a_refusal_is_shown(world):
    """And the process is not tried again."""
    process = world.add(2, leaking)
    while not world.opened:
        world.go_on(1)
    world.refuse(process, "it is a Go program")
    world.go_on(4_000)
    assert world.opened == [2]
    (row,) = world.watcher.processes()
    assert (row.state, row.reason) == (WatchState.REFUSED, "it is a Go program")


def test_steady_processes_are_read_once_a_minute(world):
    """A thousand of them: under 20 readings a second."""
    for pid in range(1, 1_001):
        world.add(pid, steady)
    world.go_on(120)
    reads = world.reads
    world.go_on(60)
    assert 900 <= world.reads - reads <= 1_300
    assert world.opened == []


def test_figures_of_all(world):
    """Counts, and the fastest growers first."""
    for pid in range(1, 31):
        world.add(pid, lambda s, pid=pid: leaking(s * pid))
    world.add(99, steady)
    world.go_on(450)
    summary = world.watcher.summary()
    assert (summary.watched, summary.growing, summary.windows_open) == (31, 30, 1)
    assert [row.pid for row in summary.fastest] == list(range(30, 20, -1))
    assert summary.fastest[0].comm == "program-30"


def test_seconds_do_for_minutes():
    """All times are configured."""
    options = AutoOptions(
        interval_s=1.0,
        growth=GrowthOptions(window_s=16.0, min_bytes=MIB, warmup_s=2.0),
        looks=LookOptions(windows=1, pause_s=20.0, calm_s=16.0),
        window_s=5.0,
    )
    world = World(options)
    world.add(2, leaking)
    world.go_on(90)
    assert [when_s for when_s, _ in world.actions] == [pytest.approx(s, abs=5) for s in (18, 43, 88)]


def test_the_last_reading_of_a_process_outlives_it():
    """For the case that the kernel has killed it: for a minute, in which a pid is not used again."""
    world = World()
    noticed = []
    world.watcher.noticed = lambda process, size: noticed.append((process, size))
    process = world.add(23, lambda now_s: 40 * MIB)
    assert world.watcher.last_reading(23) is None
    world.go_on(15)
    assert noticed
    assert set(noticed) == {(process, 40 * MIB)}
    assert world.watcher.last_reading(23) == (process, 40 * MIB)
    world.watcher.remove(process)
    world.go_on(50)
    assert world.watcher.last_reading(23) == (process, 40 * MIB)
    world.go_on(20)
    assert world.watcher.last_reading(23) is None


def test_only_so_many_last_readings_are_kept():
    """The oldest go first."""
    world = World()
    processes = [world.add(pid, lambda now_s: MIB) for pid in range(1_000, 1_300)]
    world.go_on(15)
    for process in processes:
        world.watcher.remove(process)
    kept = [process.pid for process in processes if world.watcher.last_reading(process.pid)]
    assert kept == list(range(1_044, 1_300))


def test_descriptors_of_a_watched_process():
    """They are counted at each reading; those that grow steadily are named, a pool that filled is not."""
    world = World()
    counts = {23: lambda s: 20 + s // 10, 24: lambda s: min(60, 20 + s), 25: lambda s: 20 + s // 7 % 30}
    world.watcher = GrowthWatcher(
        OPTIONS,
        world._read,
        lambda pid: f"program-{pid}",
        DescriptorWatch(OPTIONS.growth, lambda pid: counts[pid](world.now_s), lambda pid: f"program-{pid}"),
    )
    for pid in counts:
        world.add(pid, steady, WATCH)
    world.go_on(900)
    rows = {row.pid: row for row in world.watcher.processes()}
    assert [rows[pid].descriptors for pid in counts] == [
        pytest.approx(110, abs=6),
        60,
        pytest.approx(35, abs=15),
    ]
    assert rows[23].descriptors_per_min == pytest.approx(6, rel=0.1)
    assert rows[23].descriptors_reason.startswith("file descriptors grow: 6/min")
    assert [rows[pid].descriptors_reason for pid in (24, 25)] == ["", ""]
    assert world.actions == [], "nothing is attached to"


def test_descriptors_are_not_counted_by_default():
    """Then a row has none."""
    world = World()
    world.add(23, steady, WATCH)
    world.go_on(20)
    (row,) = world.watcher.processes()
    assert (row.descriptors, row.descriptors_per_min, row.descriptors_reason) == (None, 0.0, "")
