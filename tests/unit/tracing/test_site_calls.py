"""Whether the system calls of a process are seen where it makes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bpfleakd.kernel.abi import RecordingState
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.tracing.address_space.address_maps import AddressMaps
from bpfleakd.tracing.address_space.site_calls import SiteCalls

PID = 4_711
S = 1_000_000_000
MODULE = "bpfleakd.tracing.address_space.address_maps"


def mapping(start: int) -> Mapping:
    return Mapping(start, start + 4_096, 0, "00:00", 0, "", readable=True, writable=True, executable=False)


class Process:
    """A process whose map is compared at every reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mappings = [mapping(0x10000)]
        monkeypatch.setattr(f"{MODULE}.read_mappings", lambda _pid: tuple(self.mappings))
        monkeypatch.setattr(f"{MODULE}._COMPARING_PAUSE_NS", 0)
        monkeypatch.setattr(f"{MODULE}._COMPARING_PAUSE", 0)
        maps = AddressMaps(lambda _event: False, lambda *_: False)
        maps.follow(PID, self.mappings)
        self._calls = SiteCalls(maps)
        self._now_ns = self._hits = 0

    def objection(self, hits: int = 0, seconds: float = 1.0) -> str:
        self._now_ns += round(seconds * S)
        self._hits += hits
        counters = ProcessCounters(RecordingState.RECORDING, 0, 0, {}, site_hits=self._hits)
        return self._calls.objection(PID, counters, self._now_ns)


def test_what_calls_now_and_then_is_seen_where_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    assert [process.objection(4_000) for _ in range(5)] == [""] * 5


def test_what_calls_all_the_time_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls before the first reading are not counted: their time is unknown."""
    process = Process(monkeypatch)
    assert process.objection(1_000_000) == ""
    assert process.objection(4_000, seconds=0.5) == "it changes its address space 8,000 times a second"


def test_a_map_that_keeps_differing_shows_unseen_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once may be a call that was under way."""
    process = Process(monkeypatch)
    process.objection()
    process.mappings.append(mapping(0x20000))
    assert process.objection() == ""
    assert process.objection() == ""
    process.mappings.append(mapping(0x30000))
    assert process.objection() == ""
    process.mappings.append(mapping(0x40000))
    assert process.objection() == "it makes system calls at unknown places"


def test_a_map_that_agrees_is_compared_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 40 s in the end, until it differs: then soon again."""
    compared_s: list[int] = []
    now_s = 0
    process = Process(monkeypatch)
    monkeypatch.setattr(f"{MODULE}._COMPARING_PAUSE_NS", 10 * S)
    monkeypatch.setattr(f"{MODULE}.time", SimpleNamespace(perf_counter_ns=lambda: now_s * S))

    def read(_pid: int) -> tuple[Mapping, ...]:
        compared_s.append(now_s)
        return tuple(process.mappings)

    monkeypatch.setattr(f"{MODULE}.read_mappings", read)
    for now_s in range(500):
        if now_s == 400:
            process.mappings.append(mapping(0x20000))
        process.objection()

    assert compared_s == [0, 10, 30, *range(60, 421, 40), 430, 440, 460, 490]
