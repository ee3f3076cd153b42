"""The face that every runtime has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from msgspec import Struct

from bpfleakd.model.address_space import JitModule
from bpfleakd.model.code.method import FrameNames, ManagedNames, MethodSource
from bpfleakd.model.code.python_walk import PythonWalk
from bpfleakd.model.code.stack import RawStack
from bpfleakd.model.runtimes.managed import RuntimeArea
from bpfleakd.unwind.managed_code import CodeRange
from bpfleakd.unwind.table import UnwindTable

__all__ = [
    "AliveFunction",
    "AreaSource",
    "CompiledSource",
    "FrameSource",
    "HeapLimitSource",
    "HeapSampler",
    "HolderSource",
    "LiveHeap",
    "LiveHeapSource",
    "ManagedCode",
    "NotStarted",
    "PerfMapRuntime",
    "PerfMapWriter",
    "Retained",
    "RetainedSource",
    "RunningTypeSource",
    "Runtime",
    "RuntimeFailure",
    "SampledHeap",
    "SampledLine",
    "SampledRuntime",
    "SampledSurvivor",
    "SampledSurvivors",
    "SurvivorSampler",
    "SurvivorsRuntime",
    "TypeCount",
    "TypeSource",
]


class TypeCount(Struct, frozen=True):
    """The objects of one type, their own bytes without what they refer to."""

    type: str
    live_bytes: int
    live_count: int


class LiveHeap(Struct, frozen=True):
    """What a collection left alive.

    `at_ns` is CLOCK_MONOTONIC at the end of the collection, `collections` their number so far. Only a full
    one covers all objects: `live_bytes` of the others is an upper bound. A full one that tolerates garbage
    leaves `least_bytes` at least. `is_reading`: the heap counts
    references, and these are the bytes in use when it was read, by `types`, most bytes first.
    """

    at_ns: int
    live_bytes: int
    collections: int
    is_full: bool = True
    least_bytes: int | None = None
    is_reading: bool = False
    types: tuple[TypeCount, ...] = ()


class FrameSource(FrameNames, Protocol):
    """Managed frames: how the stack walker passes them, and their names."""

    @property
    def walk(self) -> PythonWalk:
        """What the stack walker needs to know."""

    def maps_arena(self, size_bytes: int, stack: Callable[[], RawStack]) -> bool:
        """Whether so much anonymous memory, mapped at this stack, is for the objects of the interpreter."""


class ManagedCode(ManagedNames, Protocol):
    """Code that the runtime has made: where it is, how the walker unwinds it, and the names of its frames."""

    def ranges(self, now_ns: int) -> Sequence[CodeRange]:
        """Where code is now, in no order; no two of them overlap. Asked at each tick, so nothing waits."""


class LiveHeapSource(Protocol):
    """The size of the managed heap after each collection.

    Collections are reported since `watched_since_ns`, None if they are not; `failure` says why.
    """

    @property
    def failure(self) -> str | None: ...

    @property
    def watched_since_ns(self) -> int | None: ...

    def read(self, now_ns: int) -> Sequence[LiveHeap]:
        """The collections since the last call, oldest first."""


class Retained(Struct, frozen=True):
    """What a stack allocated of one type and collections left alive, by samples.

    `stack` are addresses in managed code, innermost first, where the calls return to. Where no samples are
    taken, it is the values of a `container` that grows ("list of 12,000"), or of `container_count` of them
    ("300 lists with 78,714 values"), by `growth_per_s` values, and `raw_stack` that of the call that last
    gave one more room; None: that was not seen. `is_proven`: they are alive for certain. `age_s`: samples
    are not taken any more, and this was so long ago.
    """

    type: str
    stack: tuple[int, ...]
    live_bytes: int
    samples: int
    growth_bytes_per_s: float
    container: str | None = None
    container_count: int = 1
    growth_per_s: float | None = None
    raw_stack: RawStack | None = None
    is_proven: bool = True
    age_s: float = 0.0


class RetainedSource(Protocol):
    """The functions that allocate what stays alive, by sampling, while they are wanted."""

    def want(self, *, wanted: bool) -> None:
        """Whether the heap seems to grow."""

    def refresh(self, now_ns: int) -> None:
        """Learn what is new; nothing waits."""

    def retained(self) -> Sequence[Retained]:
        """What stayed alive, most bytes first."""


@runtime_checkable
class HolderSource(RetainedSource, Protocol):
    """The functions that keep what stays alive, if the blocks of memory that grow with it show them."""

    def charge(self, stack_of_block: Callable[[int], RawStack | None]) -> None:
        """Learn which stacks allocated these blocks, by their addresses."""


@runtime_checkable
class AreaSource(Protocol):
    """A runtime that tells what it has beside its objects."""

    @property
    def areas(self) -> tuple[RuntimeArea, ...]:
        """As of now, or when the runtime last counted; nothing waits."""


@runtime_checkable
class HeapLimitSource(Protocol):
    """A runtime that tells beyond which size of its heap it refuses memory."""

    @property
    def heap_limit_bytes(self) -> int | None:
        """None if unknown."""


@runtime_checkable
class CompiledSource(Protocol):
    """A source of methods that counts what the runtime has compiled."""

    def compiled(self) -> Sequence[JitModule]:
        """What was compiled while the process was traced, by module; of some seconds ago. Nothing waits."""


class PerfMapWriter(Protocol):
    """Has a runtime write a perf map, on request only, because it disturbs the process.

    `command` is what the runtime is asked for.
    """

    command: str

    def written(self) -> AbstractContextManager[None]:
        """The map is there within this context. Waits for the process. Raises RuntimeFailure."""


@runtime_checkable
class PerfMapRuntime(Protocol):
    """A runtime that can be asked for a perf map."""

    @property
    def perf_map(self) -> PerfMapWriter: ...


class AliveFunction(Protocol):
    """What a function allocated and is alive, in bytes, estimated from `samples`; `line` is 0 if unknown."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def samples(self) -> int: ...


class SampledHeap(Struct, frozen=True):
    """What a sample says: functions with most bytes first, and the bytes of all.

    The inspector was at `address`. `is_others`: the samples are the program's own.
    """

    functions: Sequence[AliveFunction]
    live_bytes: int
    sampled_s: float
    address: str
    was_open: bool
    is_others: bool
    is_left_open: bool


class HeapSampler(Protocol):
    """Samples the allocations of a runtime through its inspector, on request only."""

    def address(self) -> tuple[str, bool]:
        """Where the inspector is or will be, and whether it is open. Raises RuntimeFailure."""

    def stops_s(self) -> float | None:
        """How long a collection will stop the process, in seconds, about; None if unknown."""

    def sample(self, seconds: float) -> SampledHeap:
        """Sample for so long. Waits for the process. Raises RuntimeFailure."""


@runtime_checkable
class SampledRuntime(Protocol):
    """A runtime whose heap can be sampled."""

    @property
    def sampler(self) -> HeapSampler: ...


class SampledLine(Struct, frozen=True):
    """A frame: a method with its class, and a line, 0 if it is unknown."""

    method: str
    line: int


class SampledSurvivor(Struct, frozen=True):
    """Samples of objects of one type that a stack (innermost first) allocated and that are alive.

    `held_by` are the fields and arrays that lead to one of them, from the root inwards.
    """

    type: str
    samples: int
    stack: Sequence[SampledLine]
    held_by: Sequence[str]


class SampledSurvivors(Struct, frozen=True):
    """Those with most samples, the `samples` of all, and how long allocations were sampled."""

    survivors: Sequence[SampledSurvivor]
    samples: int
    sampled_s: float


class SurvivorSampler(Protocol):
    """Has a runtime sample who allocates what stays alive, and what holds that, on request only."""

    def stops_s(self) -> float | None:
        """How long the search for holders will stop the process, in seconds, about; None if unknown."""

    def sample(self, seconds: float) -> SampledSurvivors:
        """Sample for so long, or longer if samples are few. Waits for the process. Raises RuntimeFailure."""


@runtime_checkable
class SurvivorsRuntime(Protocol):
    """A runtime that can sample so; None if this version of it cannot."""

    @property
    def survivors(self) -> SurvivorSampler | None: ...


class NotStarted(Exception):
    """There is a runtime, but it has not started: try again later."""


class RuntimeFailure(Exception):
    """A runtime cannot be asked. The message is the end of a sentence about the process."""


class TypeSource(Protocol):
    """Bytes and count by type, on request only, because it may stop the process.

    `work` is what it stops for, `includes_garbage` whether unreferenced objects count, too.
    """

    work: str
    includes_garbage: bool

    def price_s(self) -> float | None:
        """How long it will stop the process, in seconds, about; None if unknown."""

    def read(self) -> Sequence[TypeCount]:
        """All types, most bytes first. Waits for the process, so not on the tick. Raises RuntimeFailure."""


@runtime_checkable
class RunningTypeSource(TypeSource, Protocol):
    """One that can count while the process runs: what comes or goes meanwhile is left out."""

    def read_running(self) -> Sequence[TypeCount]:
        """All types, most bytes first. Raises RuntimeFailure."""


class Runtime(Protocol):
    """A language runtime in one traced process."""

    name: str
    version: str

    @property
    def methods(self) -> MethodSource | None: ...

    @property
    def frames(self) -> FrameSource | None: ...

    @property
    def code_tables(self) -> Sequence[UnwindTable]:
        """What unwinds code that it has made, by the process' addresses; another object when that changed.

        Empty where such code keeps frame pointers.
        """

    @property
    def code(self) -> ManagedCode | None: ...

    @property
    def live_heap(self) -> LiveHeapSource | None: ...

    @property
    def allocations(self) -> RetainedSource | None: ...

    @property
    def types(self) -> TypeSource | None: ...

    @property
    def notes(self) -> Sequence[str]:
        """What is missing, a sentence each, and the flag or capability that would give it."""

    def close(self) -> None:
        """Leave nothing behind in the process."""
