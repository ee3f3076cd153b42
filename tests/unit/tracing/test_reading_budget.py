"""How much of the loop's time one process may take, and what remains for the others."""

from __future__ import annotations

from bpfleakd.tracing.reading_budget import FAIR_NS, MOST_NS, TOTAL_NS, Pause, ReadingBudget


def test_a_process_has_its_share_and_no_more():
    """Alone it may take more than among others, but not without limit."""
    budget = ReadingBudget()
    budget.begin()
    budget.charge(1, MOST_NS)
    assert not budget.is_over(1)
    budget.charge(1, 1)
    assert budget.is_over(1)
    assert not budget.is_over(2)


def test_many_storms_leave_a_share_to_a_bystander():
    """When all together have used up the time, only processes above their fair share wait."""
    budget = ReadingBudget()
    budget.begin()
    storms = range(100, 100 + TOTAL_NS // FAIR_NS + 1)
    for pid in storms:
        budget.charge(pid, FAIR_NS + 1)
    budget.charge(1, FAIR_NS)
    assert all(budget.is_over(pid) for pid in storms)
    assert not budget.is_over(1)


def test_a_reading_begins_with_all_the_time():
    """Whatever the last one took."""
    budget = ReadingBudget()
    budget.charge(1, 10 * MOST_NS)
    budget.begin()
    assert not budget.is_over(1)


def test_a_pause_is_as_long_as_the_job_was_dear():
    """A job of 3 ns is done again after 20 times as long."""
    pause = Pause(20)
    assert pause.is_due(0)
    pause.done(100, 103)
    assert not pause.is_due(162)
    assert pause.is_due(163)


def test_a_budget_of_other_limits():
    """The remaining time shrinks to the fair share when all have used up theirs."""
    budget = ReadingBudget(total_ns=100, most_ns=50, fair_ns=5)
    budget.charge(1, 40)
    assert (budget.left_ns(1), budget.left_ns(2)) == (10, 50)
    budget.charge(3, 70)
    assert (budget.left_ns(1), budget.left_ns(2)) == (-35, 5)
    budget.begin()
    assert budget.left_ns(1) == 50
