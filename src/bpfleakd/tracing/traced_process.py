"""The daemon's data on one traced process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np
import structlog
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpfleakd import errors
from bpfleakd.analysis.fingerprint import fingerprint
from bpfleakd.kernel.abi import KINDS, RecordingState
from bpfleakd.kernel.maps import Maps
from bpfleakd.kernel.process_slots import ProcessCounters
from bpfleakd.log_pause import LogPause
from bpfleakd.model.address_space import UseSummary
from bpfleakd.model.blocks import BlocksReport
from bpfleakd.model.code.mapping import CodeMapping, Mapping
from bpfleakd.model.code.stack import FrameKind, NamedStack, RawStack
from bpfleakd.model.oom import OomKill
from bpfleakd.model.packed import Packed
from bpfleakd.model.process import ProcessState, TracingRequest
from bpfleakd.model.report import LeakReport
from bpfleakd.model.site import AllocationKind, SiteKey
from bpfleakd.model.verdict import ProcessVerdict
from bpfleakd.printable import printable
from bpfleakd.process.files.rooted_open import root_of
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import GONE, has_ended
from bpfleakd.runtimes.go.program import FoundGo
from bpfleakd.symbols.symbolizer import LOSS_REASONS as NAMING_LOSS_REASONS
from bpfleakd.symbols.symbolizer import Symbolizer
from bpfleakd.table.address_map import AddressMap
from bpfleakd.table.block_sample import BlockSample
from bpfleakd.table.census import SiteCensus, take_census
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.allocator_functions import AllocatorFunctions
from bpfleakd.tracing.attaching.attachment import Attachment
from bpfleakd.tracing.descriptor_sites import DescriptorSites
from bpfleakd.tracing.go.goroutines import GoroutineWatch
from bpfleakd.tracing.go.profile import GoProfile, without_guesses
from bpfleakd.tracing.judging.site_suppressions import SiteSuppressions
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts
from bpfleakd.tracing.managed_heap import HeapTracking
from bpfleakd.tracing.reading_budget import Pause
from bpfleakd.tracing.resource_watch import ResourceWatch
from bpfleakd.tracing.runtimes import ProcessRuntimes
from bpfleakd.tracing.site_charging import SiteCharging
from bpfleakd.tracing.types.block_types import BlockTypes

log = structlog.get_logger()

_NS_PER_S = 1_000_000_000
# A census of a million blocks takes a third of a second: this is the maximum share of the time for them.
_CENSUS_SHARE = 0.1
_CENSUS_PAUSE_NS = _NS_PER_S // 2
# A process with an error is read again after this time, which doubles with each error.
_PAUSE_NS = 2 * _NS_PER_S
_PAUSE_MAX_NS = 300 * _NS_PER_S
# The maps of a process are read again for unknown addresses, but no more often than this.
_MAPPINGS_PAUSE_NS = _NS_PER_S
_NAMED_STACKS_MAX = 4096
_VTABLES_LIMIT_S = 2.0
# The tables of an ended process are kept this long for its names, since a busy machine is slow.
_LAST_NAMES_NS = 10 * _NS_PER_S
_THREAD_NAMES_MAX = 4096
# A program may load and unload plugins for ever.
_LIBRARIES_LOG_PAUSE_NS = 600 * _NS_PER_S
# The pause after following libraries and generated code, and after judging, in durations of that work.
_LIBRARIES_PAUSE = 4
_CODE_PAUSE = 4
_LOOKS_PAUSE = 4


class TracedSince(Struct, frozen=True):
    """When a process was attached, and what has happened to its daemons since.

    `memory` is its memory by use at the attach. `adopted_count` daemons adopted it; together they found it
    without a daemon for `gap_s`. It was attached to again `begun_anew` times, without its earlier records.
    This is stored for the next daemon.
    """

    attached_ns: int
    memory: tuple[UseSummary, ...] = ()
    adopted_count: int = 0
    gap_s: float = 0.0
    begun_anew: int = 0


class SetAside(Struct, frozen=True):
    """A process that is not read until `until_ns` because of an error."""

    reason: str
    until_ns: int
    pause_ns: int


@dataclass(slots=True)
class TracedProcess:
    """A process from its attach on. `final`, `final_blocks` and `final_code` belong to a process that ended,
    `final_unsuppressed` includes suppressed sites; the blocks include them, too.

    `anonymous_bytes` is its resident and swapped anonymous memory when it was judged last; None: unreadable.
    `reachable` is what the last scan for lost blocks, at `scanned_ns`, has found of its sites.
    """

    attachment: Attachment
    request: TracingRequest
    since: TracedSince
    symbolizer: Symbolizer
    table: SiteTable
    counters: ProcessCounters
    verdicts: SiteVerdicts = field(default_factory=SiteVerdicts)
    runtimes: ProcessRuntimes = field(init=False)
    block_types: BlockTypes = field(init=False)
    resources: ResourceWatch = field(init=False)
    descriptors: DescriptorSites = field(init=False)
    suppressions: SiteSuppressions = field(default_factory=SiteSuppressions, init=False)
    charging: SiteCharging = field(default_factory=SiteCharging, init=False)
    state: ProcessState = field(default=ProcessState.TRACED, init=False)
    set_aside: SetAside | None = field(default=None, init=False)
    followed_changes: int | None = field(default=None, init=False)
    libraries_log: LogPause = field(default_factory=lambda: LogPause(_LIBRARIES_LOG_PAUSE_NS), init=False)
    library_pause: Pause = field(default_factory=lambda: Pause(_LIBRARIES_PAUSE), init=False)
    code_pause: Pause = field(default_factory=lambda: Pause(_CODE_PAUSE), init=False)
    look_pause: Pause = field(default_factory=lambda: Pause(_LOOKS_PAUSE), init=False)
    glance_pause: Pause = field(default_factory=lambda: Pause(_LOOKS_PAUSE), init=False)
    ended_ns: int | None = field(default=None, init=False)
    final: LeakReport | None = field(default=None, init=False)
    final_unsuppressed: LeakReport | None = field(default=None, init=False)
    final_blocks: Packed[BlocksReport] | None = field(default=None, init=False)
    final_code: tuple[CodeMapping, ...] = field(default=(), init=False)
    census: dict[SiteKey, SiteCensus] | None = field(default=None, init=False)
    unrecorded_regions: int = field(default=0, init=False)
    anonymous_bytes: int | None = field(default=None, init=False)
    thread_names: dict[int, str] = field(default_factory=dict, init=False)
    reachable: dict[SiteKey, bool | None] = field(default_factory=dict, init=False)
    scanned_ns: int | None = field(default=None, init=False)
    process_verdict: ProcessVerdict | None = field(default=None, init=False)
    go: GoProfile | None = field(default=None, init=False)
    goroutines: GoroutineWatch | None = field(default=None, init=False)
    oom: OomKill | None = field(default=None, init=False)
    # Rows of leaking sites, to be announced once their names are known.
    unannounced: list[int] = field(default_factory=list, init=False)
    _census_due_ns: int = field(default=0, init=False)
    _announce_due_ns: int = field(default=0, init=False)
    _names_due_ns: int | None = field(default=None, init=False)
    _leaks_waiting: list[int] = field(default_factory=list, init=False)
    _mappings_due_ns: int = field(default=0, init=False)
    _named: OrderedDict[SiteKey, NamedStack] = field(default_factory=OrderedDict, init=False)
    _functions: AllocatorFunctions | None = field(default=None, init=False)
    _noted_code: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.runtimes = ProcessRuntimes(self.attachment.process, {})
        self.resources = ResourceWatch(
            self.attachment.process.id, self.since.attached_ns, self.verdicts.leak_after_s
        )
        self.descriptors = DescriptorSites(self.attachment.process.id, self.verdicts.leak_after_s)
        self.block_types = BlockTypes(
            self.attachment.process.id,
            self.symbolizer.readable,
            vtables=partial(self.symbolizer.vtables, limit_s=_VTABLES_LIMIT_S),
        )

    @property
    def pid(self) -> int:
        """The process' pid, which another process may have after it ended."""
        return self.attachment.process.id.pid

    @property
    def heap(self) -> HeapTracking:
        """The managed heap."""
        return self.runtimes.heap

    @property
    def losses(self) -> dict[str, int]:
        """All losses of the process, by reason: of the programs, the address map and the names."""
        naming = dict.fromkeys(NAMING_LOSS_REASONS, 0) | self.symbolizer.losses
        ours = {"region_full": self.unrecorded_regions, "begun_anew": self.since.begun_anew}
        if self.go is not None and self.goroutines is not None:
            ours |= {**self.go.losses, **self.goroutines.losses}
        return {**self.counters.losses, **ours, **naming}

    def is_set_aside(self, now_ns: int) -> bool:
        """Whether it is currently not read because of an error."""
        return self.set_aside is not None and now_ns < self.set_aside.until_ns

    @contextmanager
    def isolated(self, clock_ns: Callable[[], int]) -> Iterator[None]:
        """Catch errors with this process: it is set aside, longer each time, and the others continue."""
        try:
            yield
        except Exception as error:
            before = self.set_aside
            pause_ns = min(2 * before.pause_ns, _PAUSE_MAX_NS) if before else _PAUSE_NS
            reason = printable(f"{type(error).__name__}: {error}")
            self.set_aside = SetAside(reason, clock_ns() + pause_ns, pause_ns)
            is_known = before is not None and before.reason == reason
            details = {} if is_known else {"exc_info": error}
            log.error(
                "process.set-aside", pid=self.pid, reason=reason, pause_s=pause_ns // _NS_PER_S, **details
            )

    def is_in_allocator(self, stack: RawStack) -> bool:
        """Whether a stack contains a function that allocates or frees, or Go's own allocator."""
        if self.go is not None and self.go.is_in_allocator(stack):
            return True
        return self._allocator_functions().are_in(stack)

    def is_call_of_allocator(self, stack: RawStack) -> bool:
        """Whether the system call on top of a stack is always an allocator's, whoever called that."""
        return self._allocator_functions().have_called(stack)

    def allocators_caller_of_sbrk(self, stack: RawStack) -> int | None:
        """Where sbrk returns to in a call of brk, if only an allocator calls it there."""
        return self._allocator_functions().caller_of_sbrk(stack)

    def _allocator_functions(self) -> AllocatorFunctions:
        if self._functions is None or self._functions.attachment is not self.attachment:
            self._functions = AllocatorFunctions(self.attachment)
        return self._functions

    def leaks_to_announce(self, found: list[int], now_ns: int, pause_ns: int) -> list[int]:
        """The rows of leaks to log now: those `found` and those that waited, once per pause."""
        self._leaks_waiting += found
        if not self._leaks_waiting or now_ns < self._announce_due_ns:
            return []
        leaks, self._leaks_waiting = self._leaks_waiting, []
        self._announce_due_ns = now_ns + pause_ns
        return leaks

    def forget_sites(self, rows: NDArray[np.intp], heirs: NDArray[np.intp]) -> None:
        """Remove heap sites without live blocks; other sites reuse their rows (SiteTable.remove)."""
        gone = set(rows.tolist())
        self.unannounced = [row for row in self.unannounced if row not in gone]
        self._leaks_waiting = [row for row in self._leaks_waiting if row not in gone]
        self.charging.forget(self.table.keys_of(rows))
        self.table.remove(rows, heirs)
        self.verdicts.forget(rows)
        self.suppressions.forget(rows)

    def note_threads(self, names: dict[int, str]) -> None:
        """Store the names of the current threads; ended ones keep theirs, up to a limit."""
        for tid, name in names.items():
            self.thread_names.pop(tid, None)
            self.thread_names[tid] = name
        excess = len(self.thread_names) - max(_THREAD_NAMES_MAX, len(names))
        for tid in list(islice(self.thread_names, max(0, excess))):
            del self.thread_names[tid]

    @property
    def is_gone(self) -> bool:
        """Whether the process had ended, or become another program, when it was adopted."""
        return self.attachment.pidfd == GONE

    def has_ended(self) -> bool:
        """Whether the process has ended with its last thread (its pidfd is then readable)."""
        return self.is_gone or has_ended(self.attachment.pidfd)

    def has_other_stack(self) -> bool:
        """Whether the main thread's stack has another end than at the attach: the process has called exec."""
        before = _stack_end(self.attachment.mappings)
        if self.is_gone or before is None:
            return False
        try:
            return _stack_end(read_mappings(self.pid)) != before
        except errors.BpfleakdError:
            # It has just ended.
            return False

    @property
    def has_runtime(self) -> bool:
        """Whether it has a language runtime, whose frames and heap change by themselves."""
        return self.go is not None or any(self.runtimes)

    @property
    def is_ending(self) -> bool:
        """Whether it has ended and is kept for its names."""
        return self._names_due_ns is not None

    def waits_for_names(self, now_ns: int) -> bool:
        """Whether the last report of an ended process should wait a little for names."""
        if self._names_due_ns is None:
            self._names_due_ns = now_ns + _LAST_NAMES_NS
            if self.symbolizer.is_pending:
                self.symbolizer.hurry()
        return self.symbolizer.is_pending and now_ns < self._names_due_ns

    def take_census(
        self,
        maps: Maps,
        space: AddressMap | None,
        clock_ns: Callable[[], int],
        sample: BlockSample | None = None,
    ) -> None:
        """Count blocks and regions by thread and age, unless the last census is recent.

        A `sample` of the blocks is taken in the same pass.
        """
        now_ns = clock_ns()
        if self.census is None or now_ns >= self._census_due_ns or self.state is not ProcessState.TRACED:
            heap = take_census(_sampled(maps.live_blocks(self.pid), sample))
            self.census = {SiteKey(KINDS[kind], stack_id): site for (kind, stack_id), site in heap.items()}
            if space is not None:
                self.census |= space.census()
            took_ns = clock_ns() - now_ns
            self._census_due_ns = now_ns + max(_CENSUS_PAUSE_NS, round(took_ns / _CENSUS_SHARE))

    def named_stacks(self, maps: Maps, keys: Iterable[SiteKey], now_ns: int) -> dict[SiteKey, NamedStack]:
        """The stacks of sites, with the best names currently available."""
        keys = list(keys)
        wanted = [key for key in keys if key not in self._named or not self._named[key].final]
        if self.go is not None:
            of_go = [key for key in wanted if key.kind is AllocationKind.GO_HEAP]
            self._named |= {key: self.go.named_stack(key) for key in of_go}
            wanted = [key for key in wanted if key.kind is not AllocationKind.GO_HEAP]
        if wanted:
            raw = [maps.stack(self.pid, key.stack_id) for key in wanted]
            self._refresh_mappings(maps, raw, now_ns)
            stacks = self.symbolizer.symbolize(raw)
            if self.go is not None:
                stacks = [without_guesses(stack) for stack in stacks]
            for key, unnamed, stack in zip(wanted, raw, stacks, strict=True):
                has_names = all(frame.function or frame.kind is FrameKind.NATIVE for frame in stack.frames)
                final = has_names and not stack.pending and self.symbolizer.covers(unnamed.addresses)
                settled = self.charging.fingerprint(key)
                self._named[key] = NamedStack(stack, settled or fingerprint(key.kind, stack), final)
        for key in keys:
            self._named.move_to_end(key)
        while len(self._named) > max(_NAMED_STACKS_MAX, len(keys)):
            self._named.popitem(last=False)
        return {key: self._named[key] for key in keys}

    def drop_caches(self) -> None:
        """Drop data that can be computed again."""
        self._named.clear()
        self.census = None

    def keep_final_only(self) -> None:
        """Drop the data behind the last report of an ended process."""
        self.drop_caches()
        self.table.forget_sites()
        self.verdicts = SiteVerdicts()
        self.charging = SiteCharging()
        self.reachable.clear()

    def close(self) -> None:
        """Close the sources of names, and remove everything from the process."""
        self.symbolizer.close()
        self.runtimes.close()
        if self.go is not None:
            self.go.close()

    def follow_runtimes(self, maps: Maps, mappings: Sequence[Mapping], now_ns: int) -> None:
        """Find the language runtimes that the process has loaded."""
        if self.runtimes.follow(mappings):
            self.symbolizer.use_methods(self.runtimes.methods)
            self.symbolizer.use_frames(self.runtimes.frames)
            self.symbolizer.use_managed(self.runtimes.code)
            if self.runtimes.frames is not None:
                walk = self.runtimes.frames.walk
                sees_releases = self.attachment.sees_call(walk.code_release)
                maps.set_python(self.pid, walk, sees_releases=sees_releases)
        self.runtimes.refresh_code(now_ns)
        self.runtimes.refresh(now_ns)

    def follow_go(self, found: FoundGo, clock_ns: Callable[[], int]) -> None:
        """Read the data of Go's runtime from now on, if there is one."""
        self.attachment = replace(self.attachment, go=found)
        if found.program is not None and self.go is None:
            sees_c = bool(self.attachment.probes)
            self.goroutines = GoroutineWatch(found.program, clock_ns(), self.verdicts.leak_after_s, clock_ns)
            self.go = GoProfile(found.program, self.pid, clock_ns, sees_c=sees_c)
            # These stacks were named before it was known where Go's code begins.
            self._named.clear()

    def note_code(self, maps: Maps, changes: int | None = None) -> None:
        """Record the mapped code of the process; called after its mappings were read.

        `changes` is the number of changes so far (ProcessCounters.code_changes); None reads it.
        """
        if changes is None:
            changes = maps.process(self.pid).code_changes
        if changes != self._noted_code:
            self.symbolizer.note_loaded(maps.code.of(self.pid, root_of(self.pid).path))
            self._noted_code = changes

    def _refresh_mappings(self, maps: Maps, stacks: Iterable[RawStack], now_ns: int) -> None:
        addresses = {address for stack in stacks for address in stack.addresses}
        # After exec the mappings belong to another program, and after the end to another process.
        if self.is_gone or self.counters.state is not RecordingState.RECORDING:
            return
        if now_ns < self._mappings_due_ns or self.symbolizer.covers(addresses):
            return
        self._mappings_due_ns = now_ns + _MAPPINGS_PAUSE_NS
        try:
            self.symbolizer.update_mappings(read_mappings(self.pid))
        except errors.BpfleakdError:
            # The process has just ended: earlier readings still name most of it.
            return
        self.note_code(maps)


def _sampled(
    batches: Iterable[tuple[np.ndarray, np.ndarray]], sample: BlockSample | None
) -> Iterator[np.ndarray]:
    for addresses, blocks in batches:
        if sample is not None:
            sample.add(addresses, blocks)
        yield blocks


def _stack_end(mappings: Iterable[Mapping]) -> int | None:
    return next((mapping.end for mapping in mappings if mapping.path == "[stack]"), None)
