"""The language runtimes of a traced process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as Mapping_
from itertools import islice

import structlog
from msgspec.structs import replace

from bpfleakd.model.address_space import JitModule
from bpfleakd.model.code.managed_frame import managed_frames
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.method import MethodSource
from bpfleakd.model.code.stack import RawStack
from bpfleakd.model.runtimes.managed import TypeFigures
from bpfleakd.process.process import ProcessInfo
from bpfleakd.runtimes.detection import Detector, detect
from bpfleakd.runtimes.runtime import (
    AreaSource,
    CompiledSource,
    CycleCollected,
    FrameSource,
    HeapLimitSource,
    HolderSource,
    LiveHeap,
    ManagedCode,
    Retained,
    Runtime,
    SampledRuntime,
    SurvivorsRuntime,
)
from bpfleakd.runtimes.unread import Unread
from bpfleakd.tracing.managed_heap import HeapTracking
from bpfleakd.tracing.object_memory import ObjectLooks, filling
from bpfleakd.tracing.retained import fitted, retained_types
from bpfleakd.tracing.types.type_counts import TypeCounts
from bpfleakd.unwind.table import UnwindTable

# Reading one takes some 20 us.
_STACKS_NOTED_AT_ONCE = 500
# A program may have an interpreter that it never starts: eventually it is checked every 256 ticks.
_LOOKED_MAX = 8
_TYPES_OVER_NS = 30_000_000_000

log = structlog.get_logger()


class ProcessRuntimes:
    """The runtimes of one process, with its managed `heap`.

    `counts` are the last counts of its objects by type, if any.
    """

    def __init__(self, process: ProcessInfo, detectors: Mapping_[str, Detector]) -> None:
        self._process = process
        self._detectors = detectors
        self._runtimes: list[Runtime] = []
        self._failed: list[Runtime] = []
        self.heap = HeapTracking()
        self.counts: TypeCounts | None = None
        self._read_counts: TypeCounts | None = None
        self._is_complete = True
        self._looked = self._ticks = 0
        self._noted: set[int] = set()
        self._to_note: dict[int, None] = {}

    def __iter__(self) -> Iterator[Runtime]:
        return iter(self._runtimes)

    @property
    def methods(self) -> list[MethodSource]:
        """The sources of names for code compiled at run time."""
        return [runtime.methods for runtime in self._runtimes if runtime.methods is not None]

    def compiled(self) -> list[JitModule]:
        """Code compiled while the process was traced, by module, as far as runtimes count it."""
        return [m for source in self.methods if isinstance(source, CompiledSource) for m in source.compiled()]

    @property
    def code_tables(self) -> Sequence[UnwindTable]:
        """The unwind tables of code compiled at run time, of the first runtime that has any."""
        return next((runtime.code_tables for runtime in self._runtimes if runtime.code_tables), ())

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on missing data and how to get it."""
        return tuple(note for runtime in self._runtimes for note in runtime.notes)

    @property
    def frames(self) -> FrameSource | None:
        """The source of names for an interpreter's frames; the first, if there are several."""
        return next((runtime.frames for runtime in self._runtimes if runtime.frames is not None), None)

    @property
    def code(self) -> ManagedCode | None:
        """What unwinds and names managed frames; the first, if there are several."""
        return next((runtime.code for runtime in self._runtimes if runtime.code is not None), None)

    def note_stacks(
        self, stack_ids: Iterable[int], stack_of: Callable[[int], RawStack], limit_ns: int
    ) -> None:
        """Read the frames of new stacks before they disappear, a few per call, for about `limit_ns`.

        The rest of the stack at which the time is over is read when it is shown.
        """
        frames, code = self.frames, self.code
        live = [source for source in self.methods if source.is_live]
        if frames is None and code is None and not live:
            return
        self._to_note.update(dict.fromkeys(number for number in stack_ids if number not in self._noted))
        over_ns = time.monotonic_ns() + limit_ns
        for number in list(islice(self._to_note, _STACKS_NOTED_AT_ONCE)):
            del self._to_note[number]
            self._noted.add(number)
            words = stack_of(number).addresses
            for _one in _noted(words, frames, code, live):
                if time.monotonic_ns() > over_ns:
                    return

    def forget_stacks(self, stack_ids: Iterable[int]) -> None:
        """Forget stacks that are no longer in the tables; if one returns, its frames are read again."""
        for number in stack_ids:
            self._noted.discard(number)
            self._to_note.pop(number, None)

    def charge_blocks(self, stack_of_block: Callable[[int], RawStack | None]) -> None:
        """Find the functions that allocated the blocks that grow with the retained memory."""
        source = self.heap_runtime.allocations if self.heap_runtime else None
        # Most processes have none, and checking a protocol is slow: this runs at every tick.
        if source is not None and isinstance(source, HolderSource):
            source.charge(stack_of_block)

    @property
    def type_runtime(self) -> Runtime | None:
        """The runtime that can count its objects by type."""
        return next((one for one in self._runtimes if one.types is not None), None)

    @property
    def types(self) -> tuple[TypeFigures, ...]:
        """Figures on types: from the last count, from the last reading of the heap, or from samples."""
        counts = self._read_counts or self.counts
        return counts.figures if counts is not None else retained_types(self.retained)

    def follow(self, mappings: Sequence[Mapping]) -> bool:
        """Find newly started runtimes; returns whether there are any."""
        known = {runtime.name for runtime in (*self._runtimes, *self._failed)}
        found = detect(self._process, mappings, self._detectors, known)
        self._looked, self._ticks = self._looked + 1, 0
        self._is_complete = found.is_complete
        for runtime in found.runtimes:
            log.info("runtime.found", pid=self._process.id.pid, runtime=runtime.name, version=runtime.version)
        self._runtimes += found.runtimes
        return bool(found.runtimes)

    def is_awaited(self) -> bool:
        """Whether to look at this tick for a runtime that had not started: ever more rarely."""
        if self._is_complete:
            return False
        self._ticks += 1
        return self._ticks >= 1 << min(self._looked, _LOOKED_MAX)

    @property
    def heap_runtime(self) -> Runtime | None:
        """The runtime that reports its collections, if there is one."""
        return next((one for one in self._runtimes if one.live_heap is not None), None)

    @property
    def has_unread_collector(self) -> bool:
        """Whether it runs a language whose collections bpfleakd does not see."""
        return any(isinstance(one, Unread) and one.has_collector for one in self._runtimes)

    @property
    def retained(self) -> Sequence[Retained]:
        """Retained memory by type and stack, most bytes first; at most as much as the heap holds."""
        source = self.heap_runtime.allocations if self.heap_runtime else None
        return fitted(source.retained(), self.heap.heap) if source else ()

    def object_looks(self, began_ns: int, now_ns: int) -> ObjectLooks | None:
        """What confirms leaks of a heap that counts references; None without one. Attached at `began_ns`."""
        source = self.heap_runtime.allocations if self.heap_runtime else None
        if source is None or not isinstance(source, CycleCollected):
            return None
        cycles = source.cycles
        looked_s = None if cycles.looked_ns is None else (cycles.looked_ns - began_ns) / 1e9
        next_s = (now_ns - began_ns) / 1e9 + cycles.due_s
        return ObjectLooks(source.retained(), looked_s, next_s, cycles.knows_containers)

    @property
    def makes_code(self) -> bool:
        """Whether any runtime generates code that the stack walker must know."""
        return any(one.methods is not None or one.code is not None for one in self._runtimes)

    def refresh_code(self, now_ns: int) -> None:
        """Read newly generated code; does not wait long."""
        self._each(lambda runtime: runtime.methods.refresh(now_ns) if runtime.methods is not None else None)

    def refresh(self, now_ns: int) -> None:
        """Read all other news; does not wait."""
        self._each(lambda runtime: self._refresh(runtime, now_ns))

    def _each(self, step: Callable[[Runtime], None]) -> None:
        """Run a step for each runtime; drop a runtime whose step fails because of a bug."""
        for runtime in list(self._runtimes):
            try:
                step(runtime)
            except Exception:
                # It reads data that the process controls.
                log.exception("runtime.failed", pid=self._process.id.pid, runtime=runtime.name)
                runtime.close()
                self._failed.append(runtime)
                self._runtimes.remove(runtime)

    def _refresh(self, runtime: Runtime, now_ns: int) -> None:
        if runtime is not self.heap_runtime or runtime.live_heap is None:
            return
        readings = runtime.live_heap.read(now_ns)
        self.heap.note(readings)
        for reading in readings:
            if reading.types:
                self._note_types(reading)
        if runtime.allocations is not None:
            retained = runtime.allocations.retained()
            self.heap.is_held, self.heap.fills = bool(retained), filling(retained)
            runtime.allocations.want(wanted=self.heap.may_grow)
            runtime.allocations.refresh(now_ns)

    def _note_types(self, reading: LiveHeap) -> None:
        last = self._read_counts
        before = None
        if last is not None:
            # Growth is measured over some time, whatever the pause between two readings.
            is_enough = last.before is None or reading.at_ns - last.at_ns >= _TYPES_OVER_NS
            before = replace(last, before=None) if is_enough else last.before
        self._read_counts = TypeCounts(reading.at_ns, reading.types, before)

    def judge_heap(self, now_ns: int, leak_after_s: float) -> None:
        """Compute the verdict from what collections leave alive."""
        runtime = self.heap_runtime
        since_ns = runtime.live_heap.watched_since_ns if runtime and runtime.live_heap else None
        if runtime is not None and since_ns is not None:
            areas = runtime.areas if isinstance(runtime, AreaSource) else ()
            self.heap.teller = _teller_of(runtime)
            limit_bytes = runtime.heap_limit_bytes if isinstance(runtime, HeapLimitSource) else None
            self.heap.judge(runtime.name, since_ns, now_ns, leak_after_s, areas, limit_bytes)

    def close(self) -> None:
        """Remove everything from the process."""
        for runtime in self._runtimes:
            runtime.close()


def _noted(
    words: Sequence[int],
    frames: FrameSource | None,
    code: ManagedCode | None,
    live: Sequence[MethodSource],
) -> Iterator[None]:
    """Read the frames of a stack, one per step."""
    if frames is not None:
        for word in words:
            frames.note((word,))
            yield
    if code is not None:
        for _index, frame in managed_frames(words):
            code.note((frame,))
            yield
    for source in live:
        for address in words[1:]:
            source.find(address - 1)
            yield


def _teller_of(runtime: Runtime) -> str | None:
    """The option of `bpfleakctl types` by which this runtime shows the owners of memory, if any."""
    if isinstance(runtime, SurvivorsRuntime) and runtime.survivors is not None:
        return "--who"
    return "--inspector" if isinstance(runtime, SampledRuntime) else None
