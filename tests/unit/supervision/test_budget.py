"""Limits on the cost of tracing, and which processes must be traced more cheaply."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.model.code.probe import ProbeCost
from bpfleakd.supervision.budget import Budget, BudgetLimits, Change, Usage

# Ten thousand hits a second are 1% of a core.
COST = ProbeCost(hit_ns=1_000.0, record_ns=2_000.0)
LIMITS = BudgetLimits(process_percent=10.0, host_percent=25.0)
EXACT, SAMPLED, NOT_AT_ALL = range(3)


class World:
    """Processes with this cost in percent of a core at each level, one round a second."""

    def __init__(self) -> None:
        self.budget: Budget[str] = Budget(LIMITS, COST, levels=3)
        self.now_s = 0
        self.percents: dict[str, tuple[float, ...]] = {}
        self.exempt: set[str] = set()
        self.changes: list[tuple[int, Change[str]]] = []
        self._hits: dict[str, int] = {}

    def go_on(self, seconds: int) -> list[Change[str]]:
        first = len(self.changes)
        for _second in range(seconds):
            self.now_s += 1
            for name, percents in self.percents.items():
                hits = round(percents[self.budget.level(name)] * 10_000)
                self._hits[name] = self._hits.get(name, 0) + hits
            usages = [(name, Usage(self._hits[name], 0, name in self.exempt)) for name in self.percents]
            self.changes += [(self.now_s, change) for change in self.budget.round(self.now_s, usages)]
        return [change for _when, change in self.changes[first:]]


@pytest.fixture
def world() -> World:
    return World()


def test_the_load_is_hits_and_records_at_their_prices():
    """In percent of a core, since the last round."""
    budget: Budget[str] = Budget(LIMITS, COST, levels=3)
    budget.round(0.0, [("a", Usage(5_000, 70)), ("b", Usage(0, 0))])
    assert budget.host_percent == 0
    budget.round(2.0, [("a", Usage(15_000, 5_070)), ("b", Usage(40_000, 0))])
    assert budget.load_percent("a") == pytest.approx(1.0)
    assert budget.load_percent("b") == pytest.approx(2.0)
    assert budget.host_percent == pytest.approx(3.0)


def test_a_process_within_its_budget_is_left_alone(world):
    """Also right at it."""
    world.percents = {"a": (10.0, 5.0, 0.0)}
    assert world.go_on(100) == []


def test_a_process_over_its_budget_is_traced_more_cheaply(world):
    """After some rounds, with the figures as the reason, and no further if that is enough."""
    world.percents = {"dear": (15.0, 8.0, 0.0), "cheap": (1.0, 0.5, 0.0)}
    (change,) = world.go_on(20)
    assert (change.key, change.level) == ("dear", SAMPLED)
    assert change.reason == "tracing costs 15% of a core: over its budget of 10%"


def test_a_process_that_is_always_over_it_is_not_traced_at_all(world):
    """Level by level."""
    world.percents = {"dear": (35.0, 15.0, 0.0)}
    assert [change.level for change in world.go_on(20)] == [SAMPLED, NOT_AT_ALL]


def test_far_over_the_budget_is_no_matter_of_rounds(world):
    """The program suffers meanwhile."""
    world.percents = {"dear": (90.0, 2.0, 0.0)}
    assert [change.level for change in world.go_on(2)] == [SAMPLED]


def test_a_burst_is_forgiven(world):
    """Two rounds over it, and then peace."""
    world.percents = {"a": (1.0, 1.0, 0.0)}
    for _ in range(10):
        world.percents["a"] = (15.0, 1.0, 0.0)
        assert world.go_on(2) == []
        world.percents["a"] = (1.0, 1.0, 0.0)
        assert world.go_on(1) == []


def test_the_host_has_a_budget_too(world):
    """The dearest has to give way, one at a time, until it is kept."""
    world.percents = {
        name: (percent, 1.0, 0.0) for name, percent in (("a", 8), ("b", 9), ("c", 9.5), ("d", 7))
    }
    changes = world.go_on(60)
    assert [(change.key, change.level) for change in changes] == [("c", SAMPLED)]
    assert "34% with all others: over the host's budget of 25%" in changes[0].reason
    assert world.budget.host_percent == pytest.approx(25.0)


def test_whoever_was_attached_by_hand_is_exempt(world):
    """It neither gets cheaper itself, nor makes other cheap processes cheaper."""
    world.percents = {"manual": (80.0, 80.0, 80.0), "policy": (5.0, 1.0, 0.0), "idle": (0.0, 0.0, 0.0)}
    world.exempt = {"manual"}
    assert world.go_on(50) == []
    assert world.budget.host_percent == pytest.approx(85.0)
    assert world.budget.policy_percent == pytest.approx(5.0)


def test_a_process_that_has_calmed_down_is_traced_closely_again(world):
    """After a while; after a relapse that takes twice as long."""
    world.percents = {"a": (50.0, 5.0, 0.0)}
    world.go_on(10)
    world.percents["a"] = (2.0, 1.0, 0.0)
    (back,) = world.go_on(400)
    assert back.level == EXACT
    world.percents["a"] = (50.0, 5.0, 0.0)
    world.go_on(10)
    relapsed_s = world.now_s
    world.percents["a"] = (2.0, 1.0, 0.0)
    world.go_on(700)
    when_s, back = world.changes[-1]
    assert back.level == EXACT
    assert when_s - relapsed_s >= 590


def test_it_does_not_swing(world):
    """A process that would exceed the budget again at once stays at its level."""
    world.percents = {"a": (15.0, 5.0, 0.0)}
    assert len(world.go_on(20_000)) == 1


def test_what_is_traced_again_begins_anew(world):
    """So does a process whose counters restarted."""
    world.percents = {"a": (50.0, 1.0, 0.0)}
    world.go_on(10)
    assert world.budget.level("a") == SAMPLED
    world.budget.round(11.0, [])
    assert (world.budget.level("a"), world.budget.load_percent("a")) == (EXACT, 0.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 400), st.booleans()), max_size=80))
def test_levels_stay_in_their_range(events):
    """Whatever the loads are; and exempt processes never change."""
    world = World()
    world.exempt = {"p0"}
    for number, percent, ends in events:
        if ends:
            world.percents.pop(f"p{number}", None)
        else:
            world.percents[f"p{number}"] = (percent, percent / 2, 0.0)
        for change in world.go_on(1):
            assert EXACT <= change.level <= NOT_AT_ALL
            assert change.key != "p0"
            assert change.level == world.budget.level(change.key)
