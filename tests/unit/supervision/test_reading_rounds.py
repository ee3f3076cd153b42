"""When to read which process: evenly, often if it changes, and each within a limit."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from bpfleakd.supervision.reading_rounds import ReadingRounds


def test_processes_that_are_added_together_are_read_spread_over_the_interval():
    """A tick of a second reads about a tenth of them."""
    rounds: ReadingRounds[int] = ReadingRounds(10.0)
    for pid in range(1_000):
        rounds.add(pid, 0.0)
    counts = [len(rounds.due(float(second), 1_000)) for second in range(1, 11)]
    assert sum(counts) == 1_000
    assert max(counts) <= 110


def test_what_does_not_change_is_read_once_in_six_intervals():
    """Half a minute after it settled."""
    rounds: ReadingRounds[str] = ReadingRounds(10.0)
    rounds.add("steady", 0.0)
    read_s = []
    for second in range(1_000):
        for key in rounds.due(float(second), 10):
            read_s.append(second)
            rounds.was_read(key, float(second), changed=False)
    assert read_s[-1] - read_s[-2] == 60
    assert len(read_s) < 25


def test_what_changes_is_read_at_the_interval_at_once():
    """However slowly it was read before."""
    rounds: ReadingRounds[str] = ReadingRounds(10.0)
    rounds.add("late", 0.0)
    for second in range(0, 400, 10):
        for key in rounds.due(float(second), 10):
            rounds.was_read(key, float(second), changed=False)
    rounds.was_read("late", 400.0, changed=True)
    assert rounds.due(409.9, 10) == []
    assert rounds.due(410.0, 10) == ["late"]


def test_who_was_removed_is_not_read():
    """Not even if it is due already, or was read just now."""
    rounds: ReadingRounds[str] = ReadingRounds(10.0)
    rounds.add("gone", 0.0)
    rounds.remove("gone")
    rounds.was_read("gone", 1.0, changed=True)
    assert rounds.due(100.0, 10) == []
    assert len(rounds) == 0


def test_a_limit_puts_the_rest_off():
    """The most overdue come first."""
    rounds: ReadingRounds[int] = ReadingRounds(10.0)
    for pid in range(30):
        rounds.add(pid, 0.0)
    first = rounds.due(20.0, 20)
    assert len(first) == 20
    assert sorted(first + rounds.due(20.0, 20)) == list(range(30))


def test_processes_that_come_and_go_leave_nothing_behind():
    """The queue does not grow with those that ended."""
    rounds: ReadingRounds[int] = ReadingRounds(10.0)
    for pid in range(10_000):
        rounds.add(pid, 0.0)
        rounds.remove(pid)
    assert len(rounds._queue) <= 16


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "pass"]), st.integers(0, 7), st.booleans()), max_size=80
)


@settings(max_examples=200, deadline=None)
@given(_EVENTS)
def test_everybody_is_read_in_time(events):
    """Each existing process is read within six intervals (and a tick) of the last time, and once each time.
    """
    rounds: ReadingRounds[int] = ReadingRounds(10.0)
    now_s, last_s = 0.0, {}
    for event, key, changed in events:
        if event == "add":
            rounds.add(key, now_s)
            last_s[key] = now_s
        elif event == "remove":
            rounds.remove(key)
            last_s.pop(key, None)
        else:
            now_s += 7.0
            due = rounds.due(now_s, 100)
            assert set(due) <= last_s.keys()
            assert max(Counter(due).values(), default=1) == 1
            for read in due:
                rounds.was_read(read, now_s, changed=changed)
                last_s[read] = now_s
            assert all(now_s - time_s <= 67.0 for time_s in last_s.values())
