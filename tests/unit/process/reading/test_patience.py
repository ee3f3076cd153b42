"""How long processes may keep readers waiting, by a clock that the tests set."""

from __future__ import annotations

import pytest

from bpfleakd.process.reading.patience import COMMON_S, LEAST_S, OWN_S, OWN_SHARE, SILENT_S, Patience


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def instances() -> dict[int, str]:
    """Processes that now have another process' pid."""
    return {}


@pytest.fixture
def patience(clock: Clock, instances: dict[int, str]) -> Patience:
    return Patience(clock, lambda pid: instances.get(pid, f"{pid}@1"))


def test_what_a_process_has_is_used_up_in_parts(patience: Patience) -> None:
    """Many short waits are as bad as a long one; others are not touched."""
    assert patience.wait(1, OWN_S / 2)
    assert not patience.is_silent(1)
    assert not patience.wait(1, OWN_S / 2)
    assert patience.is_silent(1)
    assert not patience.is_silent(2)
    assert patience.wait(2, OWN_S / 4)


def test_time_comes_back(patience: Patience, clock: Clock) -> None:
    """A process that waits for a swapped page now and then is read forever."""
    for _ in range(100):
        assert patience.wait(1, OWN_S / 2)
        clock.now_s += OWN_S / 2 / OWN_SHARE


def test_a_silent_process_is_tried_again_more_and_more_seldom(patience: Patience, clock: Clock) -> None:
    """And has its whole time then."""
    patience.wait(1, OWN_S)
    clock.now_s += SILENT_S
    assert not patience.is_silent(1)
    assert patience.wait(1, OWN_S / 2)
    assert not patience.wait(1, OWN_S / 2)
    clock.now_s += SILENT_S
    assert patience.is_silent(1)
    clock.now_s += SILENT_S
    assert not patience.is_silent(1)


def test_the_next_process_with_a_pid_begins_anew(patience: Patience, instances: dict[int, str]) -> None:
    """Silence is the process', not the pid's."""
    patience.silence(1)
    assert patience.is_silent(1)
    instances[1] = "1@2"
    assert not patience.is_silent(1)
    assert patience.wait(1, OWN_S / 2)
    assert not patience.is_silent(1)


def test_many_processes_together_have_little_each(patience: Patience) -> None:
    """What the first ones used up is missing for the next ones, except for a minimum."""
    waited_s = 0.0
    for pid in range(1, 1 + round(COMMON_S / OWN_S)):
        while patience.wait(pid, LEAST_S / 2):
            waited_s += LEAST_S / 2
    assert waited_s == pytest.approx(COMMON_S, rel=0.3)
    assert patience.wait(1000, LEAST_S / 2)
    assert not patience.wait(1000, LEAST_S)


def test_accounts_are_bounded(patience: Patience) -> None:
    """The oldest give way."""
    for pid in range(10_000):
        patience.silence(pid)
    assert not patience.is_silent(0)
    assert patience.is_silent(9_999)
