"""Classes in blocks: with this test's own blocks."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from bpfleakd.kernel.abi import LIVE_BLOCK
from bpfleakd.model.report import BlockType
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.process.process import read_process
from bpfleakd.symbols.cxx.rtti import ClassReader, FoundClass
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.background import Background
from bpfleakd.tracing.types.block_types import BlockTypes

from ..doubles import Clock, counter_rows

READABLE = {"_ZTS3Cat": "typeinfo name for Cat", "_ZTS3Dog": "typeinfo name for Dog", "_ZTS3Cow": "3Cow"}
CAT, DOG, COW = (FoundClass(name, 0, False) for name in ("3Cat", "3Dog", "3Cow"))


def a_table(stacks: dict[int, int]) -> SiteTable:
    table = SiteTable(0)
    keys = [SiteKey(AllocationKind.HEAP, stack) for stack in stacks]
    table.update(1, keys, counter_rows((live, 1, live, 1) for live in stacks.values()))
    return table


def no_rank(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(len(rows), np.int8), np.zeros(len(rows))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def told(clock: Clock, monkeypatch, found: list[FoundClass | None]) -> BlockTypes:
    """The reported classes of a site (23) with these blocks."""
    monkeypatch.setattr(ClassReader, "read", lambda *_arguments: found)
    types = BlockTypes(read_process(os.getpid()).id, lambda names, _limit_s: READABLE, clock)
    sample = types.sample(a_table({23: 100}), no_rank)
    assert sample is not None
    blocks = np.zeros(len(found), LIVE_BLOCK)
    blocks["stack_id"], blocks["size"], blocks["weight"] = 23, 32, 32
    sample.add(np.arange(len(found), dtype=np.uint64) * np.uint64(32), blocks)
    jobs = Background("test", 1)
    types.begin(sample, jobs)
    assert types.lacked_total == 1
    assert jobs.do(str(types._process), lambda: None, 10.0)
    assert not types.is_pending
    return types


def of_site(types: BlockTypes) -> tuple[BlockType, ...]:
    return types.of(SiteKey(AllocationKind.HEAP, 23))


def test_shares_of_classes(clock, monkeypatch):
    """The most frequent first; blocks without a class, or with one that has no name, are in the whole."""
    types = told(clock, monkeypatch, [DOG] * 6 + [CAT] * 10 + [COW, None, None, None])
    assert of_site(types) == (BlockType("Cat", 0.5, 0, 10), BlockType("Dog", 0.3, 0, 6))
    assert types.of(SiteKey(AllocationKind.MMAP, 23)) == ()
    assert types.of(SiteKey(AllocationKind.HEAP, 24)) == ()


def test_a_class_inside_blocks_is_in_nearly_all_of_them(clock, monkeypatch):
    """Else it is what an earlier block has left."""
    inside = FoundClass("3Cat", 16, False)
    assert of_site(told(clock, monkeypatch, [inside] * 9 + [None])) == (BlockType("Cat", 0.9, 16, 9),)
    assert of_site(told(clock, monkeypatch, [inside] * 7 + [None] * 3)) == ()
    array = FoundClass("3Cat", 8, True)
    assert of_site(told(clock, monkeypatch, [array, None])) == (BlockType("Cat[]", 0.5, 0, 1),)


def test_blocks_are_looked_at_seldom(clock, monkeypatch):
    """Again after ten seconds, or when there is a call site that was not looked at."""
    types = told(clock, monkeypatch, [CAT])
    clock.go_on(1)
    assert types.sample(a_table({23: 100}), no_rank) is None
    assert types.sample(a_table({23: 100, 24: 50}), no_rank) is not None
    clock.go_on(10)
    assert types.sample(a_table({23: 100}), no_rank) is not None


def test_where_too_many_are_being_read_nobody_waits(clock):
    """The types are omitted from the answer, and requested again with the next one."""
    jobs, may_end = Background("test", 1), threading.Event()
    jobs.do("another", may_end.wait, 0.0)
    types = BlockTypes(read_process(os.getpid()).id, lambda names, _limit_s: READABLE, clock)
    sample = types.sample(a_table({23: 100}), no_rank)
    sample.add(np.zeros(1, np.uint64), np.array([(32, 32, 0, 23, 0, 0)], LIVE_BLOCK))
    types.begin(sample, jobs)
    assert not types.is_pending
    assert types.lacked_total == 0
    may_end.set()
