"""Reading a JVM's code beside the tick: nothing blocks, and nothing stays open."""

from __future__ import annotations

import os
import time

import pytest

from bpfleakd.process.remote_memory import RemoteMemory
from bpfleakd.runtimes.jvm import code as code_module
from bpfleakd.runtimes.jvm.code import JavaCode
from bpfleakd.runtimes.jvm.code_cache import CodeSnapshot

NS_PER_S = 1_000_000_000


class Cache:
    """In place of CodeCache: nothing, an error, or what comes after a moment."""

    def __init__(self, _pid: int, memory: RemoteMemory, _layout: object) -> None:
        self.memory = memory
        self.snapshots: list[CodeSnapshot | Exception] = []

    def read(self, before: CodeSnapshot | None = None) -> CodeSnapshot:
        found = self.snapshots.pop(0) if self.snapshots else before or CodeSnapshot(())
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> type[Cache]:
    monkeypatch.setattr(code_module, "CodeCache", Cache)
    monkeypatch.setattr(code_module, "code_tables", lambda _snapshot: [])
    return Cache


class Layout:
    class method:
        const_method = 8


def refreshed(code: JavaCode, now_ns: int) -> object:
    """The result of a reading that begins now."""
    found = code.refresh(now_ns)
    deadline = time.monotonic() + 10
    while found is None and code._is_reading:
        assert time.monotonic() < deadline
        time.sleep(0.001)
        found = code.refresh(now_ns)
    return found


def test_a_process_that_cannot_be_read_is_left_alone_in_the_end(cache: type[Cache]) -> None:
    """Each failure is one; after some the process is not read any more."""
    del cache
    code = JavaCode(os.getpid(), Layout())  # type: ignore[arg-type]
    readings = code._cache
    assert isinstance(readings, Cache)
    readings.snapshots = [OSError("gone")] * 100
    for second in range(100):
        assert refreshed(code, second * 1000 * NS_PER_S) is None
        assert code.failure == (None if second < 9 else "gone")
    assert len(readings.snapshots) == 90
    code.close()


def test_its_way_to_the_memory_is_closed(cache: type[Cache]) -> None:
    """Also if the thread's result was never taken."""
    del cache
    code = JavaCode(os.getpid(), Layout())  # type: ignore[arg-type]
    code.refresh(0)
    deadline = time.monotonic() + 10
    while code._is_working:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    code.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        code._memory.word(0x1000)
