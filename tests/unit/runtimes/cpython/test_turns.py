"""Readings of object heaps take turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from bpfleakd.runtimes.cpython.turns import ReadingTurns
from tests.unit.waiting import until


def always() -> bool:
    return True


def in_thread(function: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_who_asked_first_is_next() -> None:
    """Also if all wait at once, and one of them asks again while the others wait."""
    turns, order, go_on = ReadingTurns(), [], threading.Event()

    def take(name: str) -> None:
        with turns.turn(always):
            order.append(name)
            go_on.wait(10)

    names = ["first", "second", "third", "first again", "fourth"]
    threads = []
    for count, name in enumerate(names, 1):
        threads.append(in_thread(lambda name=name: take(name)))
        until(lambda count=count: turns.count == count)
    assert order == ["first"]
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert order == names
    assert turns.count == 0


def test_a_failure_ends_the_turn() -> None:
    """The next one does not wait forever."""
    turns = ReadingTurns()
    with pytest.raises(ValueError, match="a reason"), turns.turn(always):
        raise ValueError("a reason")
    with turns.turn(always):
        assert turns.count == 1


def test_a_turn_that_is_no_longer_wanted() -> None:
    """It leaves the queue while another one has its turn; the next in the queue is not held up."""
    turns, wanted, got = ReadingTurns(), [True], []

    def take(is_wanted: Callable[[], bool]) -> None:
        with turns.turn(is_wanted) as has_turn:
            got.append(has_turn)

    with turns.turn(always):
        gives_up = in_thread(lambda: take(lambda: wanted[0]))
        until(lambda: turns.count == 2)
        behind = in_thread(lambda: take(always))
        until(lambda: turns.count == 3)
        wanted[0] = False
        turns.look_again()
        gives_up.join(10)
        assert got == [False]
        assert turns.count == 2
    behind.join(10)
    assert got == [False, True]


def test_a_rest_after_a_turn() -> None:
    """The next one waits for it, unless it is cancelled."""
    turns = ReadingTurns()
    with turns.turn(always):
        began_s = time.monotonic()
        turns.rest(0.1)
    with turns.turn(lambda: False) as has_turn:
        assert not has_turn
    with turns.turn(always) as has_turn:
        assert has_turn
        assert time.monotonic() - began_s >= 0.1
