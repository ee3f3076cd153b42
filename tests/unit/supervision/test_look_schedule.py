"""Which process is traced, and when again."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from bpfleakd.model.watching import WatchState
from bpfleakd.supervision.look_schedule import LookOptions, LookSchedule

OPTIONS = LookOptions(windows=2, pause_s=300, pause_max_s=1_000, calm_s=300)


def a_schedule() -> LookSchedule[str]:
    return LookSchedule(OPTIONS)


def test_a_process_that_grows_gets_a_window():
    """At once; one that does not gets none."""
    looks = a_schedule()
    looks.note("leaky", 0, 100.0)
    looks.note("steady", 0, 0.0)
    assert looks.due_windows(0) == ["leaky"]
    assert looks.due_windows(0) == []
    assert looks.look("leaky").state is WatchState.WINDOW
    assert looks.look("steady").state is WatchState.WATCHED


def test_the_fastest_growers_go_first_and_the_others_wait():
    """As many windows as there may be at once."""
    looks = a_schedule()
    for name, rate in (("slow", 1.0), ("fast", 3.0), ("middle", 2.0)):
        looks.note(name, 0, rate)
    assert looks.due_windows(0) == ["fast", "middle"]
    assert looks.look("slow").state is WatchState.GROWING
    looks.closed("fast", 60)
    assert looks.due_windows(60) == ["slow"]


def test_pauses_grow_while_it_goes_on_growing():
    """Twice as long each time, up to the longest."""
    looks, now_s, pauses_s = a_schedule(), 0, []
    for _round in range(5):
        closed_s = now_s
        while looks.note("leaky", now_s, 100.0) or not looks.due_windows(now_s):
            now_s += 10
        looks.opened("leaky")
        pauses_s.append(now_s - closed_s)
        now_s += 60
        looks.closed("leaky", now_s)
    assert pauses_s == [0, 300, 600, 1_000, 1_000]
    assert looks.look("leaky").windows == 5


def test_a_process_that_stops_growing_begins_anew():
    """After a while without growth; a shorter lull changes nothing."""
    looks = a_schedule()
    looks.note("leaky", 0, 100.0)
    looks.due_windows(0)
    looks.closed("leaky", 60)
    looks.note("leaky", 200, 0.0)
    assert looks.look("leaky").state is WatchState.PAUSED
    looks.note("leaky", 290, 100.0)
    assert looks.due_windows(290) == []
    looks.note("leaky", 600, 0.0)
    assert looks.look("leaky").state is WatchState.WATCHED
    looks.note("leaky", 601, 100.0)
    assert looks.due_windows(601) == ["leaky"]


def test_what_cannot_be_attached_is_not_tried_again():
    """It keeps the reason."""
    looks = a_schedule()
    looks.note("go", 0, 100.0)
    looks.due_windows(0)
    looks.failed("go", 0, "it is a Go program", for_good=True)
    looks.note("go", 10_000, 100.0)
    assert looks.due_windows(10_000) == []
    assert (looks.look("go").state, looks.look("go").reason) == (WatchState.REFUSED, "it is a Go program")


def test_what_cannot_be_attached_now_is_tried_later():
    """A table was full."""
    looks = a_schedule()
    looks.note("later", 0, 100.0)
    looks.due_windows(0)
    looks.failed("later", 0, "no room", for_good=False)
    looks.note("later", 290, 100.0)
    assert looks.due_windows(290) == []
    assert looks.look("later").reason == "no room"
    looks.note("later", 300, 100.0)
    assert looks.due_windows(300) == ["later"]


def test_a_process_that_ends_in_its_window_makes_room():
    """Nobody says that the window is closed."""
    looks = a_schedule()
    for name in ("first", "second", "third"):
        looks.note(name, 0, 100.0)
    looks.due_windows(0)
    looks.forget("first")
    assert looks.due_windows(1) == ["third"]


class Machine(RuleBasedStateMachine):
    """Anything may happen to six processes at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = a_schedule()
        self.now_s = 0.0
        self.open: set[int] = set()
        self.rests_until_s: dict[int, float] = {}

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0, 1_000.0]))
    def wait(self, seconds):
        self.now_s += seconds

    @rule(key=st.integers(0, 5), rate=st.sampled_from([0.0, 1.0, 50.0]))
    def note(self, key, rate):
        self.looks.note(key, self.now_s, rate)
        if self.looks.look(key).state is WatchState.WATCHED:
            self.rests_until_s.pop(key, None)

    @rule()
    def want(self):
        for key in self.looks.due_windows(self.now_s):
            assert key not in self.open
            assert self.now_s >= self.rests_until_s.get(key, 0.0)
            self.open.add(key)
            self.looks.opened(key)

    @rule(key=st.integers(0, 5), reason=st.sampled_from(["", "refused now"]))
    def close(self, key, reason):
        if key in self.open:
            self.open.remove(key)
            self.rests_until_s[key] = self.now_s + OPTIONS.pause_s
            if reason:
                self.looks.failed(key, self.now_s, reason, for_good=False)
            else:
                self.looks.closed(key, self.now_s)

    @rule(key=st.integers(0, 5))
    def end(self, key):
        self.open.discard(key)
        self.rests_until_s.pop(key, None)
        self.looks.forget(key)

    @invariant()
    def windows_are_few(self):
        assert self.looks.count(WatchState.WINDOW) == len(self.open) <= OPTIONS.windows


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
