"""When the daemon reads traced processes, and when it only enforces the policy."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from bpfleakd.config import Config
from bpfleakd.daemon import daemon as daemon_module
from bpfleakd.daemon.daemon import Daemon
from bpfleakd.tracing.lifetime.tick_pace import NextTick


class Ticking:
    """A daemon's loop over some seconds of a clock that only its rests advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait_s: float) -> None:
        self.now_s = 1_000.0
        self.next_tick = NextTick(wait_s)
        self.snapshot = None
        self.glances: list[float] = []
        self.news_at_s = math.inf
        self.readings: list[float] = []
        self.ticks: list[float] = []
        self._daemon = Daemon(Config(), Config, keep_on_stop=False)
        self._daemon._manager = SimpleNamespace(watchdog_s=60.0, tick_ended=self._ended)  # type: ignore[assignment]
        self._until_s = 0.0
        self._attach_at_s = math.inf
        monkeypatch.setattr(daemon_module, "status_line", lambda _snapshot: "")
        monkeypatch.setattr(daemon_module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(asyncio, "wait_for", self._rest)

    async def tick(self) -> float:
        self.readings.append(self.now_s)
        return 0.0

    async def glance(self) -> bool:
        self.glances.append(self.now_s)
        return self.now_s >= self.news_at_s > self.readings[-1]

    async def oversee(self) -> None:
        pass

    def run(self, seconds: float, *, attach_after_s: float = math.inf) -> None:
        self._until_s, self._attach_at_s = self.now_s + seconds, self.now_s + attach_after_s
        self._daemon._stop.clear()
        exporter: Any = SimpleNamespace(update=lambda *_args: None)
        asyncio.run(self._daemon._tick_until_stopped(self, exporter))  # type: ignore[arg-type]

    def pauses(self, times: list[float]) -> list[float]:
        return [round(after - before, 3) for before, after in pairwise(times)]

    def _ended(self, _status: str) -> None:
        self.ticks.append(self.now_s)

    async def _rest(self, due: Awaitable[object], rest_s: float) -> None:
        due.close()  # type: ignore[attr-defined]
        if self.now_s < self._attach_at_s <= self.now_s + rest_s:
            self.now_s = self._attach_at_s
            self._daemon._end_idle_rest()
        else:
            self.now_s += rest_s
        if self.now_s >= self._until_s:
            self._daemon._stop.set()
        raise TimeoutError


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Ticking]:
    return lambda wait_s: Ticking(monkeypatch, wait_s)


@pytest.mark.parametrize(
    ("wait_s", "pause_s"), [(0.0, 1.0), (0.5, 1.0), (3.0, 3.0), (5.0, 5.0), (12.0, 12.0), (1_000.0, 30.0)]
)
def test_processes_are_read_when_they_need_it(
    ticking: Callable[[float], Ticking], wait_s: float, pause_s: float
) -> None:
    """Twice a minute at least."""
    loop = ticking(wait_s)
    loop.run(300)
    assert set(loop.pauses(loop.readings)) == {pause_s}


@pytest.mark.parametrize("wait_s", [1_000.0, math.inf])
def test_the_policy_and_the_watchdog_do_not_wait_as_long(
    ticking: Callable[[float], Ticking], wait_s: float
) -> None:
    loop = ticking(wait_s)
    loop.run(300)
    assert max(loop.pauses(loop.ticks)) == 5.0


def test_an_attach_is_read_at_once(ticking: Callable[[float], Ticking]) -> None:
    loop = ticking(1_000.0)
    loop.run(300, attach_after_s=47.5)
    assert loop.pauses(loop.readings)[:3] == [30.0, 17.5, 30.0]


def test_with_nothing_traced_each_tick_reads(ticking: Callable[[float], Ticking]) -> None:
    loop = ticking(math.inf)
    loop.run(100)
    assert loop.readings == loop.ticks


def test_between_readings_runtimes_are_followed(ticking: Callable[[float], Ticking]) -> None:
    """Every second; what is new there is read at once, and then there is another wait."""
    loop = ticking(12.0)
    loop.next_tick = NextTick(12.0, needs_glances=True)
    loop.news_at_s = loop.now_s + 15
    loop.run(40)
    assert loop.pauses(loop.readings) == [12.0, 3.0, 12.0, 12.0]
    assert set(loop.pauses(loop.ticks)) == {1.0}
    assert len(loop.glances) == 40 - 4


def test_without_runtimes_there_is_nothing_to_follow(ticking: Callable[[float], Ticking]) -> None:
    loop = ticking(12.0)
    loop.run(40)
    assert not loop.glances
