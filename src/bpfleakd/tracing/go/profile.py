"""The heap of a Go program as call sites: counters from its own heap profile, and its stacks with names.

Rules:
  - It is checked every 5 s, in at most a fiftieth of the processor's time, and read if the program has had a
    collection since: live figures are as of the last collection.
  - Its figures count from the program's start. Memory from before the attach does not count as growth.
  - A site has no individual blocks, so their ages are unknown.

A sampled block represents several others (sample_weights). Blocks are drawn independently of one another: the
variances are those of table/estimates.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd.analysis.fingerprint import fingerprint
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.code.stack import Frame, FrameKind, NamedStack, RawStack, Stack, StackEnd
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.printable import printable
from bpfleakd.runtimes.go.heap_profile import SampledBuckets
from bpfleakd.runtimes.go.program import GoProgram
from bpfleakd.symbols.bounded_cache import BoundedCache
from bpfleakd.table.estimates import BYTES_VARIANCE_UNIT, COUNT_VARIANCE_UNIT
from bpfleakd.table.site_table import COUNTERS
from bpfleakd.tracing.go.sample_weights import SampleWeights
from bpfleakd.units import human_bytes, human_duration

_NS_PER_S = 1_000_000_000
_PAUSE_NS = 5 * _NS_PER_S
_SHARE = 0.02
_NO_PROFILE = (
    "its Go heap is not visible: the heap profile is off, as in every program that imports no pprof package;"
    " import net/http/pprof or runtime/pprof, or turn it on in the running program:"
    " bpfleakctl attach --enable-profile {pid}"
)
_NO_C = "allocations of C code (cgo) are not recorded: the allocator of this static program has no name"
_OLD = "its Go heap has not been collected for {age}: its growth since then is not known yet"
_OLD_S = 30.0
_OFF = "its garbage collector is off (GOGC=off, or debug.SetGCPercent(-1))"
_OFF_UNTIL = "its garbage collector waits until the program uses {limit} (GOGC=off, and a memory limit)"
_TURNED_OFF = (
    "its Go heap is no longer visible: the program has turned its heap profile off"
    " (runtime.MemProfileRate)"
)
_RATE_CHANGED = (
    "the program has changed the rate of its heap profile (runtime.MemProfileRate): blocks count at the rate"
    " at which they were first seen"
)
_LIBRARY = (
    "call sites of kind go-heap are estimates, as of a collection: they are of {module}'s own heap profile"
)
# The runtime collects at least every two minutes.
_COLLECTIONS_ENOUGH, _YOUNG_NS = 5, 660 * _NS_PER_S
_GARBAGE_SHARE_MAX = 10.0
_NUMBER_MAX = float(1 << 62)
_FRAMES_MAX = 16_384

Sites = tuple[list[SiteKey], NDArray[np.int64]]
_NO_SITES: Sites = ([], np.zeros((0, len(COUNTERS)), np.int64))


class GoProfile:
    """The profile of a program, which this object owns."""

    def __init__(
        self,
        program: GoProgram,
        pid: int,
        clock_ns: Callable[[], int],
        *,
        sees_c: bool = True,
        spent_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`sees_c`: allocations of C code are recorded.

        `clock_ns` is CLOCK_MONOTONIC, `spent_ns` the processor time of the reading thread.
        """
        self._pid = pid
        self._clock_ns = clock_ns
        self._spent_ns = spent_ns
        self._program = program
        self._profile = program.heap_profile()
        self._due_ns = 0
        self.rate_bytes = self._profile.rate_bytes
        """One block in about so many bytes is in the profile; 0: none."""
        self._pacer = program.pacer()
        self._pacing = self._pacer.read() if self._pacer is not None else None
        self._weights = SampleWeights()
        self._misses_c = not sees_c and program.calls_c
        self.is_alone = not sees_c and not program.calls_c
        self._cycle: int | None = None
        self._collections = self._collections_read = 0
        self._began_ns = self._collected_ns = clock_ns()
        self._peaks = np.zeros(0)
        # Stacks have most of their frames in common.
        self._frames: BoundedCache[int, Frame] = BoundedCache(_FRAMES_MAX)
        self._known = _NO_SITES[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is missing from the heap figures, and how to get it."""
        found = []
        if not self.rate_bytes:
            found.append(_TURNED_OFF if self._known.any() else _NO_PROFILE.format(pid=self._pid))
        elif self._program.is_library:
            found.append(_LIBRARY.format(module=printable(self._program.main.name)))
        if self.rate_bytes and self._weights.changed:
            found.append(_RATE_CHANGED)
        age_s, why = (self._clock_ns() - self._collected_ns) / _NS_PER_S, self._why_not_collected()
        if self.rate_bytes and (why or age_s > _OLD_S):
            found.append("; ".join((*why, _OLD.format(age=human_duration(age_s)))))
        if self._misses_c:
            found.append(_NO_C)
        return tuple(found)

    def _why_not_collected(self) -> tuple[str, ...]:
        pacing = self._pacing
        if pacing is None or pacing.percent is not None:
            return ()
        if pacing.limit_bytes is None:
            return (_OFF,)
        return (_OFF_UNTIL.format(limit=human_bytes(pacing.limit_bytes)),)

    @property
    def live_bytes(self) -> int | None:
        """The live bytes after the last collection; None if the profile does not show them."""
        if not self.rate_bytes or not len(self._known):
            return None
        return int(self._known[:, COUNTERS.index("live_bytes")].sum())

    @property
    def is_library(self) -> bool:
        """Whether Go's runtime is in a library of another program."""
        return self._program.is_library

    @property
    def garbage_share(self) -> float:
        """The garbage that the collector tolerates, as a share of the live heap."""
        percent = self._pacing.percent if self._pacing is not None else 100
        return min((percent or 0) / 100, _GARBAGE_SHARE_MAX)

    @property
    def tells_too_little(self) -> bool:
        """Whether a few more minutes are needed: a verdict is based on collections."""
        is_young = self._clock_ns() - self._began_ns < _YOUNG_NS
        return bool(self.rate_bytes) and is_young and self._collections < _COLLECTIONS_ENOUGH

    def new_collections(self) -> int:
        """How many collections have become known since the last call."""
        new, self._collections_read = self._collections - self._collections_read, self._collections
        return new

    @property
    def losses(self) -> dict[str, int]:
        """Buckets with inconsistent data, and those beyond the limit."""
        return {"profile_damaged": self._profile.damaged, "profile_full": self._profile.left_out}

    def look_again(self) -> None:
        """Check the profile soon, since the rate has changed."""
        self._due_ns = 0
        self.rate_bytes = self._profile.rate_bytes

    def close(self) -> None:
        """Close the program's memory and file."""
        self._program.close()

    def read(self, now_ns: int) -> Sites:
        """The sites, if a check is due and there may be news; otherwise none."""
        if now_ns < self._due_ns:
            return _NO_SITES
        before_ns = self._spent_ns()
        found = self.read_now()
        took_ns = self._spent_ns() - before_ns
        self._due_ns = now_ns + max(_PAUSE_NS, round(took_ns / _SHARE))
        return found

    def read_now(self) -> Sites:
        """The sites with news since the last call."""
        self.rate_bytes = self._profile.rate_bytes
        if self._pacer is not None:
            self._pacing = self._pacer.read() or self._pacing
        buckets = self._profile.read()
        if buckets is None:
            return _NO_SITES
        counters = self._counters(buckets)
        known = self._known
        changed = np.ones(len(counters), np.bool_)
        changed[: len(known)] = (counters[: len(known)] != known).any(axis=1)
        self._known = counters
        rows = np.flatnonzero(changed)
        if self._profile.cycle != self._cycle:
            self._collections += self._cycle is not None
            self._cycle, self._collected_ns = self._profile.cycle, self._clock_ns()
        keys = [SiteKey(AllocationKind.GO_HEAP, buckets.stack_ids[row]) for row in rows.tolist()]
        return keys, counters[rows]

    def _counters(self, buckets: SampledBuckets) -> NDArray[np.int64]:
        """Estimates for the sites, one row each, columns COUNTERS."""
        self._weights.update(buckets)
        sizes, weight = buckets.sizes.astype(np.float64), self._weights.live
        live, allocated = (buckets.allocs - buckets.frees).astype(np.float64), self._weights.allocated

        def by_site(values: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.minimum(np.bincount(buckets.rows, values, len(buckets.stack_ids)), _NUMBER_MAX)

        live_bytes = by_site(live * weight * sizes)
        missing = len(live_bytes) - len(self._peaks)
        self._peaks = np.maximum(np.pad(self._peaks, (0, missing)), live_bytes)
        variance = live * (weight * weight - weight)
        columns = (
            live_bytes,
            by_site(live * weight),
            by_site(allocated * sizes),
            by_site(allocated),
            np.zeros(len(live_bytes)),
            self._peaks,
            by_site(variance * sizes * sizes / BYTES_VARIANCE_UNIT),
            by_site(variance / COUNT_VARIANCE_UNIT),
        )
        return np.rint(np.stack(columns, axis=1)).astype(np.int64)

    def is_in_allocator(self, stack: RawStack) -> bool:
        """Whether a stack contains the part of the runtime that obtains memory from the kernel."""
        functions = (self._program.function_around(address - 1) for address in stack.addresses)
        return any(is_gos_allocator(function) for function in functions)

    def named_stack(self, key: SiteKey) -> NamedStack:
        """The stack of a site; it has a frame for each logical function."""
        addresses = self._profile.stack(key.stack_id)
        frames = tuple(self._frames.get(address) or self._frame(address) for address in addresses)
        truncated = None if addresses else StackEnd.LOST
        if len(addresses) >= self._program.main.code.layout.stack_max:
            truncated = StackEnd.DEPTH
        stack = Stack(frames, (None,) * len(frames), truncated)
        return NamedStack(stack, fingerprint(key.kind, stack), final=True)

    def _frame(self, address: int) -> Frame:
        module = self._program.module_at(address)
        name, method = printable(module.name), self._program.method(address)
        if method is None:
            frame = Frame(None, name, None, None, address, FrameKind.UNKNOWN)
        else:
            vaddr = address - module.bias
            frame = Frame(method.name, name, vaddr, method.location, address, FrameKind.NATIVE)
        self._frames.put(address, frame)
        return frame


# runtime/mem_linux.go and mem.go, and what they call.
_ALLOCATOR = re.compile(
    r"runtime\.(?:sys[A-Z]\w*|mmap|munmap|madvise|callCgoM\w+|persistentalloc\w*)(?:\.\w+)*"
)


def is_gos_allocator(function: str | None) -> bool:
    """Whether a function belongs to the part of the runtime that obtains memory from the kernel."""
    return function is not None and _ALLOCATOR.fullmatch(function) is not None


# The first hint for arenas (runtime/malloc.go, mallocinit); since 1.25 the kernel gets names, too.
_ARENAS = 0xC0 << 32, 1 << 40
_NAMED = "[anon: Go: "


def is_gos_memory(mapping: Mapping) -> bool:
    """Whether memory that was mapped before the attach belongs to Go's heap."""
    if mapping.path.startswith(_NAMED):
        return True
    start, end = _ARENAS
    return not mapping.path and start <= mapping.start < end


# Where Go calls C: the goroutine's stack is a different one (runtime/asm_amd64.s).
_TO_C = re.compile(r"runtime\.asmcgocall(?:\.abi0)?")


def without_guesses(stack: Stack) -> Stack:
    """A stack of C code up to the Go function that called it; everything beyond is a guess of the walker.

    C runs on the system's stack, and the walk only goes upwards: the goroutine's stack is below.
    """
    for place, frame in enumerate(stack.frames):
        if frame.function and _TO_C.fullmatch(frame.function):
            end = place + 1
            return replace(
                stack,
                frames=stack.frames[:end],
                build_ids=stack.build_ids[:end],
                truncated=StackEnd.GO_STACK,
            )
    return stack
