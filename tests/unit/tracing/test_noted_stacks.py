"""Frames of new stacks are read early, for as long as there is time."""

from __future__ import annotations

import time
from collections.abc import Iterable

from bpfleakd.model.code.stack import RawStack, StackEnd
from bpfleakd.tracing.runtimes import ProcessRuntimes


class Frames:
    """Frames that take their time to be read."""

    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.noted: list[int] = []

    def note(self, words: Iterable[int]) -> None:
        self.noted += words
        time.sleep(self.takes_s)


class Runtime:
    """A runtime that has only frames."""

    name = "one"
    methods = code = live_heap = types = None

    def __init__(self, frames: Frames) -> None:
        self.frames = frames


def noted(frames: Frames, limit_ns: int, calls: int) -> int:
    runtimes = ProcessRuntimes(None, {})  # type: ignore[arg-type]
    runtimes._runtimes.append(Runtime(frames))  # type: ignore[arg-type]
    stacks = range(40)
    for _ in range(calls):
        runtimes.note_stacks(stacks, lambda number: RawStack((number,) * 2, StackEnd.BOTTOM), limit_ns)
    return len(frames.noted)


def test_frames_are_read_once() -> None:
    """All of 40 stacks of two frames, at the first call."""
    assert noted(Frames(0.0), 10_000_000_000, 3) == 80


def test_frames_that_take_long_have_a_limit() -> None:
    """At least one per call, even if that alone takes too long; the next call continues."""
    assert noted(Frames(0.002), 1_000_000, 1) == 1
    frames = Frames(0.002)
    noted(frames, 1_000_000, 5)
    assert frames.noted == [0, 1, 2, 3, 4]


def test_stacks_that_were_removed_are_read_again() -> None:
    """The same number may come back, and its managed frames be elsewhere by then."""
    runtimes, frames = ProcessRuntimes(None, {}), Frames(0.0)  # type: ignore[arg-type]
    runtimes._runtimes.append(Runtime(frames))  # type: ignore[arg-type]

    def note(*stacks: int) -> None:
        runtimes.note_stacks(stacks, lambda number: RawStack((number,), StackEnd.BOTTOM), 10_000_000_000)

    note(7, 8)
    runtimes.forget_stacks([7])
    note(7, 8)
    assert frames.noted == [7, 8, 7]
