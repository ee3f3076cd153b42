"""The address maps of traced processes, updated from the programs' reports.

The programs mark mappings that malloc creates for itself. If a program does not wait for malloc's return (as
with free, and with blocks that are not recorded), it does not know when malloc is running. The stack shows it
then.

malloc may move the program break hundreds of times a second. That is not reported: the programs note where it
is, and the lowest one since.

Each report carries the peak of the heap until then, while nothing else changed: so the peak of both together
is exact.

Calls that a process makes itself are reported from the places where its C library makes them, if those are
probed (kernel/probes/syscall_sites.py). Other code may make calls, too, so the map is compared with
/proc/PID/maps now and then.

A lost report (the ring was full) makes the map of its process wrong. The map is then brought into line with
/proc/PID/maps, and memory that can no longer be attributed becomes baseline. The same applies to changes that
are skipped because they take too much time (reading_budget.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog
from msgspec import Struct
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.kernel.address_space_events import AddressSpaceEvent, Syscall
from bpfleakd.kernel.process_slots import ProgramBreak
from bpfleakd.log_pause import LogPause
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.process.mappings import read_mappings
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.map_checkpoint import MapCheckpoint
from bpfleakd.table.regions import Owner, Special
from bpfleakd.tracing.reading_budget import Pause, ReadingBudget

log = structlog.get_logger()

# include/uapi/asm-generic/mman-common.h and mman.h
_PROT_NONE = 0
_PROT_EXEC = 4
_MAP_ANONYMOUS = 0x20
_MAP_STACK = 0x20000
_MAP_HUGETLB = 0x40000
_MREMAP_DONTUNMAP = 4
_DROPS_CONTENTS = {4, 8, 9, 24}  # MADV_DONTNEED, _FREE, _REMOVE, _DONTNEED_LOCKED
_PAGE_MASK = 4095
# Of user space, with five levels of page tables.
_ADDRESSES = 1 << 56
# The pause after a repair, in durations of the repair: it reads all of /proc/PID/maps.
_REPAIR_PAUSE = 20
_REPAIR_LOG_PAUSE_NS = 600_000_000_000
# The pause between comparisons: in durations of one, and at least; the latter times the number that agreed,
# up to a limit. What makes no calls elsewhere for minutes seldom begins to. (After a minute without work, the
# process that reads files of others would have to start again: reading/apart.py.)
_COMPARING_PAUSE, _COMPARING_PAUSE_NS = 1_000, 10_000_000_000
_LONGEST_COMPARING_PAUSE_NS = 40_000_000_000
# One may differ because a call was under way, or because a stack has grown.
_DIFFERING_MAX = 1
_HUGE_PAGE_BYTES = 2 << 20


@dataclass(slots=True)
class _MappedProcess:
    map: AddressMap
    program_break: int
    in_allocator: dict[int, bool] = field(default_factory=dict, init=False)
    lost: int = 0
    broken: bool = False
    last_event_ns: int = 0
    peak_live_bytes: int = 0
    position: int = 0
    # Changes that were skipped because they took too much time.
    skipped: int = field(default=0, init=False)
    repairs: Pause = field(default_factory=lambda: Pause(_REPAIR_PAUSE), init=False)
    repair_log: LogPause = field(default_factory=lambda: LogPause(_REPAIR_LOG_PAUSE_NS), init=False)
    # Comparisons with /proc/PID/maps, and how many of the last ones differed or agreed.
    comparisons: Pause = field(default_factory=lambda: Pause(_COMPARING_PAUSE), init=False)
    differing: int = field(default=0, init=False)
    agreeing: int = field(default=0, init=False)
    # Whether memory was attributed to an allocator because of a call whose entry was not seen.
    is_unsure: bool = field(default=False, init=False)

    def move_break(
        self, new_break: int, owner: Owner = Special.ALLOCATOR, time_ns: int = 0, tid: int = 0
    ) -> None:
        """Apply a move of the program break; the first one of a process without a heap shows where it is."""
        if self.program_break and new_break != self.program_break:
            self.map.program_break(self.program_break, new_break, owner, time_ns, tid)
        self.program_break = new_break

    def note_heap(self, peak_bytes: int) -> None:
        """Record that this much was live in the heap while the map had its current state."""
        self.peak_live_bytes = max(self.peak_live_bytes, self.map.live_bytes + peak_bytes)


class AddressMapCheckpoint(Struct, frozen=True):
    """The data on a process' address space for the next daemon.

    It includes all reports before `position`; `lost` is the number of lost reports at the last repair. A
    `stale` checkpoint lacks later reports that cannot be read again.
    """

    map: MapCheckpoint
    program_break: int
    lost: int
    broken: bool
    last_event_ns: int
    peak_live_bytes: int
    position: int
    skipped: int = 0
    stale: bool = False


class AddressMaps:
    """One AddressMap for each followed process.

    `is_in_allocator` returns whether the stack of a report contains a function of an allocator; it is asked
    once for each stack. `is_python_arena` returns whether anonymous memory (pid, bytes, stack id) is for
    Python's objects. `take_break` returns where the program break of a pid is, and the lowest one since the
    last call; None if it has not moved.
    """

    def __init__(
        self,
        is_in_allocator: Callable[[AddressSpaceEvent], bool],
        is_python_arena: Callable[[int, int, int], bool],
        take_break: Callable[[int], ProgramBreak | None] = lambda _pid: None,
    ) -> None:
        self._is_in_allocator = is_in_allocator
        self._is_python_arena = is_python_arena
        self._take_break = take_break
        self._processes: dict[int, _MappedProcess] = {}
        self._changed: set[int] = set()
        self._budget = ReadingBudget()

    def follow(
        self,
        pid: int,
        mappings: Sequence[Mapping],
        is_allocators: Callable[[Mapping], bool] = lambda mapping: False,
    ) -> None:
        """Start with the mappings of a process, read after its recording began.

        `is_allocators` returns whether an allocator had a mapping at the attach.
        """
        self._processes[pid] = _MappedProcess(AddressMap(mappings), _heap_end(mappings))
        for mapping in filter(is_allocators, mappings):
            space = self._processes[pid].map
            space.mapped(mapping.start, mapping.end - mapping.start, Special.ALLOCATOR, 0, 0)
            self._processes[pid].is_unsure = True
        self._changed.add(pid)

    def restore(self, pid: int, checkpoint: AddressMapCheckpoint) -> None:
        """Continue where an earlier daemon stopped. Raises ValueError or LookupError on bad data."""
        process = self._processes[pid] = _MappedProcess(
            AddressMap.restored(checkpoint.map),
            checkpoint.program_break,
            lost=checkpoint.lost,
            broken=checkpoint.broken or checkpoint.stale,
            last_event_ns=checkpoint.last_event_ns,
            peak_live_bytes=checkpoint.peak_live_bytes,
            position=checkpoint.position,
        )
        process.is_unsure = True
        process.skipped = checkpoint.skipped

    def checkpoint(self, pid: int, position: int, *, stale: bool) -> AddressMapCheckpoint:
        """The data to store for a process, with all reports before `position` applied."""
        process = self._processes[pid]
        return AddressMapCheckpoint(
            process.map.checkpoint(),
            process.program_break,
            process.lost,
            process.broken,
            process.last_event_ns,
            process.peak_live_bytes,
            position,
            process.skipped,
            stale,
        )

    def take_changed(self) -> set[int]:
        """The processes whose maps have changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed & self._processes.keys()

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced."""
        self._processes.pop(pid, None)

    def begin_reading(self) -> None:
        """Start a reading with a new budget for changes."""
        self._budget.begin()

    def skipped(self, pid: int) -> int:
        """How many changes of a process were skipped because they took too much time."""
        process = self._processes.get(pid)
        return process.skipped if process else 0

    def is_broken(self, pid: int) -> bool:
        """Whether the map of a process is wrong and waits for its repair."""
        process = self._processes.get(pid)
        return process is not None and process.broken

    def map_of(self, pid: int) -> AddressMap | None:
        """The map of a process; None if it is not followed."""
        process = self._processes.get(pid)
        return process.map if process else None

    def heap_since_attach(self, pid: int) -> list[tuple[int, int]]:
        """The address ranges in which only the allocators of a process have put blocks since the attach.

        Empty if that is uncertain: the stack of a call that was running at the attach is known, but not the
        block that it returned.
        """
        process = self._processes.get(pid)
        if process is None or process.broken or process.is_unsure:
            return []
        return [(start, end) for start, end, owner in process.map.ranges() if owner is Special.ALLOCATOR]

    def apply(self, events: Iterable[AddressSpaceEvent]) -> set[int]:
        """Apply reports; returns the pids that mapped new code from files."""
        mapped_code = set()
        for event in events:
            process = self._processes.get(event.pid)
            if process is None or event.position < process.position:
                continue
            self._changed.add(event.pid)
            process.note_heap(event.heap_peak_bytes)
            process.last_event_ns = event.time_ns
            if self._budget.is_over(event.pid):
                process.skipped += 1
                process.broken = True
                continue
            # Processor time: on a busy machine the work of others must not cost this process its exactness.
            began_ns = time.thread_time_ns()
            try:
                if self._take_in(process, event):
                    mapped_code.add(event.pid)
            except Exception:
                _repair_later(event.pid, process, event.syscall)
            self._budget.charge(event.pid, time.thread_time_ns() - began_ns)
        return mapped_code

    def take_breaks(self) -> None:
        """Apply what allocators have done to the program breaks, after all reports have been applied."""
        for pid, process in self._processes.items():
            self._follow_break(pid, process)

    def _follow_break(self, pid: int, process: _MappedProcess) -> bool:
        """Apply what the allocator of a process has done to its break; returns whether it was anything."""
        found = self._take_break(pid)
        if found is None or found.lowest == found.now == process.program_break:
            return False
        if found.now > _ADDRESSES:
            # Not from the kernel: see _apply.
            process.broken = True
            return False
        try:
            process.move_break(found.lowest)
            process.move_break(found.now)
        except Exception:
            _repair_later(pid, process, Syscall.BRK)
        self._changed.add(pid)
        return True

    def _take_in(self, process: _MappedProcess, event: AddressSpaceEvent) -> bool:
        """Apply one report; returns whether new code of a file was mapped."""
        is_allocators = event.inside_allocator
        if event.stack_id and self._is_allocators(process, event):
            is_allocators = True
            process.is_unsure |= _gives_memory(process, event)
        if is_allocators != event.inside_allocator:
            event = replace(event, inside_allocator=is_allocators)
        return _apply(process, event, self._kind_of_memory(event))

    def _kind_of_memory(self, event: AddressSpaceEvent) -> AllocationKind:
        """The kind of the anonymous memory that a call maps."""
        is_mapped = event.syscall == Syscall.MMAP and event.stack_id
        if is_mapped and self._is_python_arena(event.pid, event.arguments[1], event.stack_id):
            return AllocationKind.PYTHON
        return AllocationKind.MMAP

    def _is_allocators(self, process: _MappedProcess, event: AddressSpaceEvent) -> bool:
        known = process.in_allocator.get(event.stack_id)
        if known is None:
            known = process.in_allocator[event.stack_id] = self._is_in_allocator(event)
        return known

    def peak_live_bytes(self, pid: int, heap_peak_bytes: int, read_ns: int) -> int:
        """The peak of live bytes, in the heap and at the call sites of the map together.

        `heap_peak_bytes` was read from the programs at `read_ns`. If they have reported since, the peak is in
        the report, together with the state of the map at that time.
        """
        process = self._processes.get(pid)
        if process is None:
            return heap_peak_bytes
        if process.last_event_ns < read_ns:
            process.note_heap(heap_peak_bytes)
        return process.peak_live_bytes

    def repair(self, pid: int, lost: int) -> None:
        """Bring a map into line if reports were lost since; `lost` is the process' counter of them.

        Raises the errors of read_mappings, except NoSuchProcess; then call it again.
        """
        process = self._processes.get(pid)
        if process is None or (process.lost == lost and not process.broken):
            return
        began_ns = time.perf_counter_ns()
        if not process.repairs.is_due(began_ns):
            process.broken = True
            return
        try:
            mappings = read_mappings(pid)
            differing_bytes = process.map.resynchronise(mappings)
            process.program_break = _heap_end(mappings)
        except errors.NoSuchProcess:
            # The process has ended: its last report shows the map as it was.
            differing_bytes = 0
        except errors.NotYet:
            process.broken = True
            process.repairs.done(began_ns, time.perf_counter_ns())
            return
        process.repairs.done(began_ns, time.perf_counter_ns())
        process.lost, process.broken = lost, False
        self._changed.add(pid)
        level = log.warning if process.repair_log.take(began_ns) else log.debug
        level("space.repaired", pid=pid, lost=lost, differing_bytes=differing_bytes)

    def lacks_calls(self, pid: int) -> bool:
        """Compare the map of a process with /proc/PID/maps once in a while; whether it keeps differing."""
        process = self._processes.get(pid)
        began_ns = time.perf_counter_ns()
        if process is None or process.broken or not process.comparisons.is_due(began_ns):
            return False
        with contextlib.suppress(errors.NoSuchProcess, errors.NotYet):
            self._compare(pid, process)
        pause_ns = min(max(1, process.agreeing) * _COMPARING_PAUSE_NS, _LONGEST_COMPARING_PAUSE_NS)
        process.comparisons.done(began_ns, time.perf_counter_ns(), pause_ns)
        return process.differing > _DIFFERING_MAX

    def _compare(self, pid: int, process: _MappedProcess) -> None:
        """Compare a map with /proc/PID/maps, unless the break moves meanwhile: that would be a difference."""
        self._follow_break(pid, process)
        mappings = read_mappings(pid)
        if self._follow_break(pid, process):
            return
        if process.map.resynchronise(mappings):
            self._changed.add(pid)
            process.differing, process.agreeing = process.differing + 1, 0
        else:
            process.differing, process.agreeing = 0, process.agreeing + 1


def _repair_later(pid: int, process: _MappedProcess, syscall: int) -> None:
    """After a bug of bpfleakd, or a trick of the process, its map is repaired, and the others continue."""
    if not process.broken:
        log.exception("space.broken", pid=pid, syscall=syscall)
    process.broken = True


def _gives_memory(process: _MappedProcess, event: AddressSpaceEvent) -> bool:
    """Whether the process gains memory by an event. free may return some, also by brk."""
    if event.syscall == Syscall.BRK:
        return event.result > (event.arguments[1] or process.program_break)
    return event.syscall in (Syscall.MMAP, Syscall.MREMAP)


def _apply(process: _MappedProcess, event: AddressSpaceEvent, memory_kind: AllocationKind) -> bool:
    """Apply a report; returns whether new code of a file was mapped. Anonymous memory is of `memory_kind`."""
    space, arguments = process.map, event.arguments
    start, length, third = arguments[:3]
    if event.result >= 0 and not event.at_entry and _is_impossible(event):
        # Not from the kernel: the process has jumped to where its C library makes calls.
        process.broken = True
        return False
    match event.syscall:
        case Syscall.MPROTECT | Syscall.MADVISE if event.result < 0:
            process.broken = True  # the call met a hole, after it had changed the part before it
        case Syscall.MMAP if event.result < 0:
            pass
        case Syscall.MMAP:
            page_bytes = _HUGE_PAGE_BYTES if arguments[3] & _MAP_HUGETLB else _PAGE_MASK + 1
            owner = _owner_of_mapping(event, memory_kind)
            space.mapped(event.result, length, owner, event.time_ns, event.tid, page_bytes)
            return bool(third & _PROT_EXEC) and not arguments[3] & _MAP_ANONYMOUS
        case Syscall.MUNMAP if event.at_entry:
            if length and not start & _PAGE_MASK:
                space.unmapped(start, length)
        case Syscall.MUNMAP:
            process.broken = True  # the call failed after all, which happens only if the kernel lacks memory
        case Syscall.MREMAP if event.at_entry:
            space.take(event.tid, start, length)
        case Syscall.MREMAP if event.result < 0:
            space.put_back(event.tid)
        case Syscall.MREMAP:
            keep_old = bool(arguments[3] & _MREMAP_DONTUNMAP) or length == 0
            owner = _owner(event, AllocationKind.MMAP)
            space.put(event.tid, event.result, third, owner, event.time_ns, keep_old=keep_old)
        case Syscall.MPROTECT:
            owner = _owner(event, AllocationKind.COMMIT)
            space.protected(start, length, third != _PROT_NONE, owner, event.time_ns, event.tid)
        case Syscall.MADVISE if third in _DROPS_CONTENTS:
            space.discarded(start, length)
        case Syscall.BRK if event.result >= 0:
            # brk(0) returns the current break, and a refused call the old one. malloc's moves before the call
            # were not reported.
            process.move_break(length or process.program_break)
            process.move_break(event.result, _owner(event, AllocationKind.MMAP), event.time_ns, event.tid)
    return False


def _is_impossible(event: AddressSpaceEvent) -> bool:
    start, length, new_length = event.arguments[:3]
    match event.syscall:
        case Syscall.MMAP:
            return event.result + length > _ADDRESSES
        case Syscall.MREMAP:
            return event.result + new_length > _ADDRESSES
        case Syscall.BRK:
            return max(event.result, length) > _ADDRESSES
    return start + length > _ADDRESSES


def _heap_end(mappings: Iterable[Mapping]) -> int:
    """The program break by /proc/PID/maps; 0: the process has no heap."""
    return max((mapping.end for mapping in mappings if mapping.path == "[heap]"), default=0)


def _owner_of_mapping(event: AddressSpaceEvent, memory_kind: AllocationKind) -> Owner:
    protection, flags = event.arguments[2:4]
    if not flags & _MAP_ANONYMOUS:
        return _owner(event, AllocationKind.FILE)
    # Mapped without access and made accessible later, but a stack from the beginning.
    if flags & _MAP_STACK:
        return _owner(event, AllocationKind.THREAD_STACK)
    if protection == _PROT_NONE and not event.inside_allocator:
        return Special.RESERVED
    return _owner(event, memory_kind)


def _owner(event: AddressSpaceEvent, kind: AllocationKind) -> Owner:
    return Special.ALLOCATOR if event.inside_allocator else SiteKey(kind, event.stack_id)
