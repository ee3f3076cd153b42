"""The recorded state of traced processes besides their tables: address maps, memory at the attach, sampling.

All of it outlives the daemon. The programs keep counting without one, so no count is missing; the next daemon
does the rest:
  - reports of the address space wait in their ring; if some did not fit, the map is repaired
    (address_space/);
  - libraries that were loaded meanwhile are probed then; earlier blocks of their allocators are unknown;
  - a process that ended, or called exec, gets its last report then, with the names that can still be found;
  - a process without a daemon for so long that the programs stopped is attached to again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import structlog
from msgspec.structs import replace

from bpfleakd import errors
from bpfleakd.kernel.maps import Maps
from bpfleakd.model.code.mapping import Mapping
from bpfleakd.model.process import TracingMode, TracingRequest
from bpfleakd.model.site import SiteKey
from bpfleakd.process.mappings import read_mappings
from bpfleakd.process.process import GONE
from bpfleakd.table.site_table import SiteTable
from bpfleakd.tracing.address_space.address_maps import AddressMaps
from bpfleakd.tracing.address_space.feed import AddressSpaceFeed
from bpfleakd.tracing.address_space.site_calls import SiteCalls
from bpfleakd.tracing.attaching.attachment import Attachment
from bpfleakd.tracing.checkpoint import read_checkpoint, write_if_possible
from bpfleakd.tracing.go.profile import is_gos_memory
from bpfleakd.tracing.judging.history_checkpoint import HistoryCheckpoints, restored_history
from bpfleakd.tracing.judging.site_verdicts import SiteVerdicts
from bpfleakd.tracing.memory_breakdown import MemoryBreakdown
from bpfleakd.tracing.sampling.inside_cost import InsideCosts
from bpfleakd.tracing.sampling.intervals import Sampling, SamplingOptions
from bpfleakd.tracing.site_charging import SiteIdentity
from bpfleakd.tracing.traced_process import TracedProcess, TracedSince

log = structlog.get_logger()

_SINCE = "traced"

# The figures of the sites of a process, the verdicts on them, and their blamed functions.
History: TypeAlias = tuple[SiteTable, SiteVerdicts, dict[SiteKey, SiteIdentity]]


class RecordedState:
    """The state of all traced processes, from `begin` or `resume` to `forget`.

    `watch` turns the kernel's reports of address spaces on and off; `clock_ns` is CLOCK_MONOTONIC.
    """

    def __init__(
        self,
        maps: Maps,
        address_maps: AddressMaps,
        sampling: SamplingOptions,
        leak_after_s: float,
        watch: Callable[[bool], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._maps = maps
        self.address_maps = address_maps
        self.feed = AddressSpaceFeed(maps, address_maps, clock_ns)
        self.site_calls = SiteCalls(address_maps)
        self.inside_costs = InsideCosts()
        self.memory = MemoryBreakdown()
        self.sampling = Sampling(maps, sampling)
        self._histories = HistoryCheckpoints(clock_ns)
        self._leak_after_s = leak_after_s
        self._watch = watch
        self._clock_ns = clock_ns

    def begin(self, attachment: Attachment, request: TracingRequest, begun_anew: int = 0) -> TracedSince:
        """Start the state of a process that has just been attached, for the first time or `begun_anew`."""
        pid = attachment.process.id.pid
        self._follow_address_space(attachment)
        self.feed.keep(pid, attachment.pins.record("space"))
        first = self.memory.follow(attachment.process, attachment.allocators)
        since = TracedSince(self._clock_ns(), first, begun_anew=begun_anew)
        write_if_possible(attachment.pins, _SINCE, since)
        self.sampling.begin(pid, _effective(attachment, request), since.attached_ns)
        return since

    def resume(self, attachment: Attachment, request: TracingRequest, gap_s: float) -> TracedSince:
        """Continue the state of an earlier daemon's process; that daemon ended `gap_s` ago.

        Raises OSError.
        """
        pid, pins = attachment.process.id.pid, attachment.pins
        try:
            before = read_checkpoint(record := pins.record(_SINCE), TracedSince)
        except ValueError:
            # The daemon was killed between the start of the recording and this record.
            before = TracedSince(self._clock_ns())
        finally:
            record.close()
        since = replace(before, adopted_count=before.adopted_count + 1, gap_s=before.gap_s + gap_s)
        write_if_possible(pins, _SINCE, since)
        self.memory.restore(attachment.process, since.memory, attachment.allocators)
        record = pins.record("space")
        try:
            self.feed.restore(pid, record)
        except (ValueError, LookupError) as error:
            log.warning("space.lost", pid=pid, reason=str(error))
            self._follow_address_space(attachment)
            self.feed.keep(pid, record)
        self.sampling.resume(pid, _effective(attachment, request), self._clock_ns())
        return since

    def new_history(self, *, knows_past: bool = True) -> History:
        """The history of a process without readings; it `knows_past` from its attach on."""
        return SiteTable(self._clock_ns(), knows_past=knows_past), SiteVerdicts(self._leak_after_s), {}

    def restored_history(self, attachment: Attachment) -> History:
        """The stored history of an earlier daemon, or a new one, whose growth starts now."""
        try:
            record = attachment.pins.record("history")
            return restored_history(record, self._leak_after_s, self._clock_ns())
        except ValueError as error:
            log.info("history.begun-anew", pid=attachment.process.id.pid, reason=str(error))
            return self.new_history(knows_past=False)

    def write_history(self, traced: TracedProcess, *, now: bool = False) -> None:
        """Store the history of a process, if it is due, or `now`."""
        self._histories.keep(traced, now=now)

    def forget(self, pid: int) -> None:
        """Forget a process that is no longer traced, or handed to another daemon."""
        self.feed.forget(pid)
        self.site_calls.forget(pid)
        self.inside_costs.forget(pid)
        self._histories.forget(pid)
        self.memory.forget(pid)
        self.sampling.forget(pid)

    def watch_address_spaces(self, pids: Iterable[int], *, anyway: bool = False) -> bool:
        """Start or stop the kernel's reports of changes of address spaces, as these processes need them.

        Returns whether that worked.
        """
        try:
            self._watch(anyway or any(not self._maps.process(pid).space_at_sites for pid in pids))
        except errors.KernelError as error:
            log.warning("space.not-watched", reason=error.message, hint=error.hint)
            return False
        return True

    def _follow_address_space(self, attachment: Attachment) -> None:
        is_gos = is_gos_memory if attachment.go.program is not None else (lambda mapping: False)
        self.address_maps.follow(attachment.process.id.pid, _mappings_of(attachment), is_gos)


def _effective(attachment: Attachment, request: TracingRequest) -> TracingRequest:
    """The effective request: a sampler inside the process chooses its blocks itself."""
    return replace(request, mode=TracingMode.INSIDE, level=0) if attachment.is_inside else request


def _mappings_of(attachment: Attachment) -> Sequence[Mapping]:
    """The mappings after the recording began, so no change is missed between the two."""
    if attachment.pidfd == GONE:
        return attachment.mappings
    try:
        return read_mappings(attachment.process.id.pid)
    except errors.BpfleakdError:
        return attachment.mappings
